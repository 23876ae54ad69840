"""The lab of the server's tests, for attacks on what it stores."""

from tests.server.conftest import lab as lab
from tests.server.conftest import source as source
