"""The tables, one class each, in the order things come to be: code and devices, work, results, verdicts.

Durations are nanoseconds, sizes are bytes, times are UTC with time zone.
"""

from warpwatch.db.models.access import (
    AccessTokenRecord,
    AccountRecord,
    AuditEntryRecord,
    CiIdentityRecord,
    EndedSessionRecord,
)
from warpwatch.db.models.base import Base
from warpwatch.db.models.channels import ChannelRecord, DeliveryRecord
from warpwatch.db.models.code import (
    BranchCommitRecord,
    BranchRecord,
    CardRecord,
    CaseRecord,
    CommitRecord,
    DeviceRecord,
    EnvironmentRecord,
    OperatorRecord,
    RepositoryRecord,
    VariantRecord,
    WorkerRecord,
)
from warpwatch.db.models.forge import ChangeRequestRecord, ForgeLinkRecord, ForgeMessageRecord
from warpwatch.db.models.keeping import DeletionRecord, RetentionRuleRecord
from warpwatch.db.models.patches import PatchOutcomeRecord, PatchRecord
from warpwatch.db.models.proofs import ProofRecord
from warpwatch.db.models.results import (
    BuildRecord,
    BundleRecord,
    PointRecord,
    ResultRecord,
    SamplesRecord,
    SeriesRecord,
    TraceChunkRecord,
    TraceKernelRecord,
    TraceRecord,
    TrendRecord,
)
from warpwatch.db.models.saved_views import SavedViewRecord
from warpwatch.db.models.verdicts import (
    CardOffsetRecord,
    ComparisonRecord,
    JobSourcesRecord,
    MutedSeriesRecord,
    RegressionNoteRecord,
    RegressionRecord,
    RegressionSeriesRecord,
    TrialRecord,
)
from warpwatch.db.models.watches import WatchRecord
from warpwatch.db.models.work import (
    CallbackRecord,
    JobRecord,
    PartialOutcomeRecord,
    RunLogRecord,
    RunRecord,
    ScheduleRecord,
    SubmissionRecord,
)
from warpwatch.db.models.worker_keys import ResultChunkRecord, WorkerKeyRecord

__all__ = [
    "AccessTokenRecord",
    "AccountRecord",
    "AuditEntryRecord",
    "Base",
    "BranchCommitRecord",
    "BranchRecord",
    "BuildRecord",
    "BundleRecord",
    "CallbackRecord",
    "CardOffsetRecord",
    "CardRecord",
    "CaseRecord",
    "ChangeRequestRecord",
    "ChannelRecord",
    "CiIdentityRecord",
    "CommitRecord",
    "ComparisonRecord",
    "DeletionRecord",
    "DeliveryRecord",
    "DeviceRecord",
    "EndedSessionRecord",
    "EnvironmentRecord",
    "ForgeLinkRecord",
    "ForgeMessageRecord",
    "JobRecord",
    "JobSourcesRecord",
    "MutedSeriesRecord",
    "OperatorRecord",
    "PartialOutcomeRecord",
    "PatchOutcomeRecord",
    "PatchRecord",
    "PointRecord",
    "ProofRecord",
    "RegressionNoteRecord",
    "RegressionRecord",
    "RegressionSeriesRecord",
    "RepositoryRecord",
    "ResultChunkRecord",
    "ResultRecord",
    "RetentionRuleRecord",
    "RunLogRecord",
    "RunRecord",
    "SamplesRecord",
    "SavedViewRecord",
    "ScheduleRecord",
    "SeriesRecord",
    "SubmissionRecord",
    "TraceChunkRecord",
    "TraceKernelRecord",
    "TraceRecord",
    "TrendRecord",
    "TrialRecord",
    "VariantRecord",
    "WatchRecord",
    "WorkerKeyRecord",
    "WorkerRecord",
]
