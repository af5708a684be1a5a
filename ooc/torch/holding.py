"""Sessions of a converted model: what its parts hold between their passes keeps within one budget."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ooc.networks import NetworkPlan, Session


class HeldPass:
    """A pass, and the session that it has, or has left what its gradients need in; it may be let go of."""

    def __init__(self, plan: NetworkPlan, *session: Session) -> None:
        self.plan, self._session = plan, [*session]

    @property
    def nbytes(self) -> int:
        """Bytes that count against the budget."""
        return self.plan.counted_bytes if self._session else 0

    def take(self) -> Session | None:
        """The session, whose next user is another one; None: it was taken, or let go of."""
        try:
            return self._session.pop()  # in one step: several threads may want it
        except IndexError:
            return None

    def release(self) -> None:
        """Let it go: its gradients need the pass again."""
        session = self.take()
        if session is not None:
            session.close()


class PassSessions:
    """Sessions that run, that hold what a pass forward has left, and that wait for the next one. What begins makes room for
    itself: those that wait are closed, then the oldest passes are let go, whose gradients are the last to be computed; then it
    waits for those that other threads run."""

    def __init__(self) -> None:
        self.planning = threading.RLock()
        self._changed = threading.Condition()
        self._running: list[weakref.ref[HeldPass]] = []  # whoever runs them owns them
        self._waiting: list[weakref.ref[HeldPass]] = []  # their modules do
        self._held: list[weakref.ref[HeldPass]] = []  # autograd does

    def begin(self, plan: NetworkPlan, seed: int, idle: list[HeldPass]) -> HeldPass:
        """A session of a plan, with a seed of dropout; of those that are idle, if one is of that plan. Raises BackendError where
        there is no memory."""
        one = HeldPass(plan)
        try:
            with self._changed:
                taken = [session for other in idle if other.plan is plan and (session := other.take()) is not None]
                while plan.budget is not None and self._counted() + plan.counted_bytes > plan.budget:
                    if not self._let_go() and not (self._running and self._changed.wait()):
                        break
                self._running.append(weakref.ref(one))
            session = taken[0] if taken else plan.session()
            session.seed, session.steps = seed, 0
        except BaseException:
            self._ended(one)
            raise
        return self._with(one, session)

    def resumed(self, held: HeldPass) -> HeldPass | None:
        """A pass whose gradients are computed now, and which is not let go of; None: it was."""
        with self._changed:
            session = held.take()
            if session is None:
                return None
            one = HeldPass(held.plan)
            self._running.append(weakref.ref(one))
        return self._with(one, session)

    def _with(self, one: HeldPass, session: Session) -> HeldPass:
        one._session.append(session)
        return one

    @contextmanager
    def passing(self, one: HeldPass, idle: list[HeldPass]) -> Iterator[Session]:
        """A pass. Its session is closed then, unless there are gradients to come, or it waits for the next one as the idle one of
        its module."""
        (session,) = one._session
        try:
            yield session
        except BaseException:
            one.release()
            self._ended(one)
            raise
        self._ended(one, idle, session.paused)

    def _ended(self, one: HeldPass, idle: list[HeldPass] | None = None, paused: bool = False) -> None:
        with self._changed:
            self._running = [ref for ref in self._running if ref() not in (None, one)]
            self._waiting, self._held = there(self._waiting), there(self._held)
            if paused:
                self._held.append(weakref.ref(one))
            elif idle is not None and one.plan.network.pause is not None:
                for other in idle:
                    other.release()
                idle[:] = [one]
                self._waiting.append(weakref.ref(one))
                one.plan.device.runs.rest(one)
            else:
                one.release()
            self._changed.notify_all()

    def _let_go(self) -> bool:
        """Close what waits longest, else what is held longest; returns whether there was anything."""
        for some in (self._waiting, self._held):
            while some:
                one = some.pop(0)()
                if one is not None and one.nbytes:
                    one.release()
                    return True
        return False

    def _counted(self) -> int:
        """Bytes of all of them."""
        self._running = [ref for ref in self._running if ref() is not None]
        still, running = (
            [one for ref in refs if (one := ref()) is not None] for refs in (self._waiting + self._held, self._running)
        )
        return sum(one.nbytes for one in still) + sum(one.plan.counted_bytes for one in running)

    def __reduce__(self) -> tuple[type[PassSessions], tuple[()]]:
        """A copy has sessions of its own."""
        return PassSessions, ()


def there(refs: list[weakref.ref[HeldPass]]) -> list[weakref.ref[HeldPass]]:
    """Those that have a session still."""
    return [ref for ref in refs if (one := ref()) is not None and one.nbytes]
