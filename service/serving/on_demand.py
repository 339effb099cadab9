"""A graph that was checked when its model was loaded, and is open from the first batch for it on."""

import logging
import threading
from collections.abc import Callable, Sequence

from service.errors import ConfgateError, GraphUnavailable
from service.model.images import Pixels
from service.model.scores import Outputs
from service.model.session import ActiveDevice, Session

log = logging.getLogger("confgate")


class OnDemandSession:
    """Opens its graph when a batch comes for it, in the thread that computes its batches, and keeps it open.

    `checked` is the session that ran the graph at load. It says what does not change, and is not kept.
    """

    def __init__(self, checked: Session, name: str, reopen: Callable[[], Session]) -> None:
        self.device: ActiveDevice = checked.device
        self.providers: Sequence[str] = tuple(checked.providers)
        self.largest_batch = checked.largest_batch
        self._name = name
        self._reopen = reopen
        self._session: Session | None = None
        self._one_opens = threading.Lock()

    @property
    def is_open(self) -> bool:
        return self._session is not None

    def run(self, images: Pixels) -> Outputs:
        session = self._session
        if session is None:
            session = self._opened()
        return session.run(images)

    def _opened(self) -> Session:
        with self._one_opens:
            if self._session is None:
                try:
                    self._session = self._reopen()
                except (ConfgateError, OSError) as error:
                    log.error("a graph could not be opened", extra={"graph": self._name, "reason": str(error)})
                    # Why it failed names files of the service's machine, which are for the log alone.
                    raise GraphUnavailable(
                        f"the graph {self._name} was closed after it was checked and cannot be opened now; the "
                        "service's log says why. Send the request again, or without preprocess=true"
                    ) from error
            return self._session


def is_open(session: Session) -> bool:
    """Whether the session's graph takes its memory now."""
    return not isinstance(session, OnDemandSession) or session.is_open
