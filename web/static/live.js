// Appends what a running job writes. The rest of its page is fetched anew by htmx when its state changes.
const log = document.querySelector("[data-log]");
let last = Number(log.dataset.log);
const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 40;
log.scrollTop = log.scrollHeight;

// Pieces carry their ids: after a reconnection the server tells the log again, and none may appear twice.
log.addEventListener("htmx:sseBeforeMessage", (event) => {
  event.preventDefault();
  const id = Number(event.detail.lastEventId);
  if (id && id <= last) return;
  last = id || last;
  const follow = atEnd();
  const piece = JSON.parse(event.detail.data);
  log.append(typeof piece === "string" ? piece : piece.text);
  if (follow) log.scrollTop = log.scrollHeight;
});
