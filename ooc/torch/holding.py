"""Sessions of a converted model: what its parts hold between their passes keeps within one budget."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ooc.networks import NetworkPlan, Session


class HeldPass:
    """A pass forward, and the session that has what its gradients need; None: it was let go, or they were computed."""

    def __init__(self, plan: NetworkPlan, session: Session) -> None:
        self.plan, self.session = plan, session  # type: NetworkPlan, Session | None

    @property
    def counted_bytes(self) -> int:
        """Bytes that count against the budget."""
        return 0 if self.session is None else self.plan.counted_bytes

    def take(self) -> Session | None:
        """The session, whose next user is another one."""
        session, self.session = self.session, None
        return session

    def close(self) -> None:
        """Let it go: its gradients need the pass again."""
        session = self.take()
        if session is not None:
            session.close()


class PassSessions:
    """Sessions that hold what a pass forward has left, and those that wait for the next one. What begins makes room for itself:
    those that wait are closed, then the oldest passes are let go, whose gradients are the last to be computed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[HeldPass] = []
        self._held: list[weakref.ref[HeldPass]] = []  # autograd owns them

    def begin(self, plan: NetworkPlan, seed: int) -> HeldPass:
        """A session of a plan, with a seed of dropout. Raises BackendError where there is no memory."""
        with self._lock:
            one = next((one for one in self._waiting if one.plan is plan), None)
            if one is not None:
                self._waiting.remove(one)
            self._make_room(plan)
        session = (one and one.take()) or plan.session()
        session.seed, session.steps = seed, 0
        return HeldPass(plan, session)

    def _make_room(self, plan: NetworkPlan) -> None:
        """Let go of what is too much beside a plan."""
        self._held = [ref for ref in self._held if ref() is not None]
        while plan.budget is not None and (self._waiting or self._held) and plan.counted_bytes + self._counted() > plan.budget:
            one = self._waiting.pop(0) if self._waiting else self._held.pop(0)()
            if one is not None:
                one.close()

    def _counted(self) -> int:
        """Bytes of all that it could let go of."""
        return sum(one.counted_bytes for one in (*self._waiting, *(ref() for ref in self._held)) if one is not None)

    def resumed(self, held: HeldPass) -> HeldPass | None:
        """A pass whose gradients are computed now, and which is not let go of; None: it was."""
        with self._lock:
            session = held.take()
        return None if session is None else HeldPass(held.plan, session)

    @contextmanager
    def passing(self, one: HeldPass) -> Iterator[Session]:
        """A pass. Its session is closed then, unless there are gradients to come, or it waits for the next one."""
        session = one.session
        assert session is not None
        try:
            yield session
        except BaseException:
            one.close()
            raise
        with self._lock:
            if session.paused:
                self._held.append(weakref.ref(one))
            elif one.plan.network.pause is not None:
                self._waiting.append(one)
            else:
                one.close()

    def clear(self) -> None:
        """Close those that wait."""
        with self._lock:
            while self._waiting:
                self._waiting.pop().close()

    def __reduce__(self) -> tuple[type[PassSessions], tuple[()]]:
        """A copy has sessions of its own."""
        return PassSessions, ()
