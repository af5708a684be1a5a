"""Running a plan: memory, kernels and homes are taken once, and every step goes through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from ooc.errors import ArgumentError, OocError, UnsupportedError, shown
from ooc.ir.op import compute_dtype, numpy_dtype
from ooc.networks.calls import STEP, UPDATE, Network
from ooc.networks.checkpoint import CheckpointHeader, Saved, bits, digest, saving, stored, unbits, write
from ooc.networks.inputs import gradients_of, inputs_of, outputs_of, pulled_of, reached, targets_of
from ooc.networks.lasting import averaged, before, checked, drawn
from ooc.networks.layers.loss import divided_by, divisors, losses_of
from ooc.networks.moving import STATE
from ooc.networks.optimizers import kind_of
from ooc.networks.profile import Profile
from ooc.networks.running import Running
from ooc.networks.scene import NetworkSchedule
from ooc.networks.tensors import Mode, Role
from ooc.runtime.device import Device
from ooc.sources.protocol import is_source


class Planned(Protocol):
    """What a session needs of a plan, see `ooc.networks.plan`."""

    @property
    def network(self) -> Network: ...

    @property
    def schedule(self) -> NetworkSchedule: ...

    @property
    def device(self) -> Device: ...

    @property
    def budget(self) -> int | None: ...

    def inference(self) -> tuple[Network, NetworkSchedule]: ...


class Session:
    """A plan that runs, as `NetworkPlan.session` returns it. A context manager; one thread at a time.

    Fields:
        plan: what is run.
        seed: of dropout.
        steps: finished training steps; of a plan with train="both" passes forward and backward.
    """

    def __init__(self, plan: Planned, parameters: Mapping[str, Any], seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 1 << 63:
            raise ArgumentError(f"seed={shown(seed)}: expected an integer from 0 to 2^63 - 1")
        self.plan, self.seed, self.steps = plan, int(seed), 0
        self._broken, self._stepped, self._scaled = "", False, 1.0
        self._profile: Profile | None = None
        if plan.network.lent and parameters:
            raise ArgumentError("parameters: the plan has them lent; pass them with x in each call")
        values = {**plan.network.graph.values, **checked(plan.network.graph, parameters, plan.device.backend)}
        self._main: Running | None = Running(plan.network, plan.schedule, plan.device, None, plan.budget)
        self._inference: Running | None = None
        self._last = self._main  # what ran last
        weights = plan.network.graph.parameters
        mine = [t for t in plan.network.lasting if t.name not in plan.network.borrowed]
        for tensor in mine:  # one after the other: all of them may be more than there is memory
            self._main.put(tensor, before(tensor, values, weights, self.seed))

    # ---- steps

    def step(self, x: Any, labels: Any, counted: float | Mapping[str, float] | None = None) -> float:
        """One training step: loss, gradients, and where the plan has an optimizer its update.

        Parameters:
            x: the input, batch x its shape, in its dtype; a dict by name where there are several.
            labels: what the loss compares, see `Graph.loss`: integers, one per sample (or per position), of which negative ones
                do not count, or a target of the shape of what it reads; a dict by the name of the loss where several losses do
                not take the same.
            counted: what loss and gradients are divided by, where the batch is a part of a larger one; a dict by the name of the
                loss where there are several; default None: what counts in this batch.

        Returns:
            loss: a float, the sum of the losses.

        Raises:
            ArgumentError, DtypeError: what does not fit; nothing has changed then.
            OocError: as the functions of ooc; the session cannot go on where the update had begun.
        """
        running = self._of(Mode.STEP, "step")
        net, losses = self.plan.network, losses_of(self.plan.network.graph)
        arrays = inputs_of(net, x, self.plan.device.backend)
        targets = targets_of(net, labels, self.plan.device.backend)
        by = divisors(net, targets) if counted is None else divided_by(net, counted)
        scale = self._loss_scale()
        for name, loss in losses.items():
            arrays |= loss.layer.given(net, loss.inputs, targets[name], by[name] / scale)
        arrays |= self._own()
        try:
            running.lend(arrays)
            running.run(arrays, self._profile)
        except BaseException as error:
            if running.began(UPDATE, self.plan.network):
                self._broken = f"step {self.steps} failed while it moved the parameters: {type(error).__name__}"
            raise
        self.steps += 1
        self._stepped, self._scaled = True, scale
        sums = {name: float(running.get(net.tensors[name]).reshape(())) for name in losses}
        return sum((loss.layer.weight * sums[name] / by[name] for name, loss in losses.items()), 0.0)

    def forward(self, x: Any, out: Any = None) -> Any:
        """The outputs of the graph as in inference: running statistics, no dropout; of a plan with train="forward" or "both" as a
        training step has them, and the running statistics move.

        Parameters:
            x: as of `step`.
            out: where the outputs go: an array, batch x shape, which may map a file; a dict by name where the graph has several
                outputs. It is written by region, and shares no memory with the inputs; default None: new arrays.

        Returns:
            outputs: an array, batch x shape; a dict by name where the graph has several outputs.

        Raises:
            ShapeError, DtypeError: what does not fit, a graph without outputs.
        """
        main = running = self._open()
        if self.plan.network.mode is Mode.BACKWARD:
            raise UnsupportedError('forward: the plan is one of gradients; pass train=False, "forward" or "both" to Graph.plan')
        if self.plan.network.mode is Mode.STEP:
            if self._inference is None:
                self._inference = Running(*self.plan.inference(), self.plan.device, main, self.plan.budget)
            running = self._inference
        self._last = running
        arrays = inputs_of(self.plan.network, x, self.plan.device.backend)
        targets = outputs_of(self.plan.network, out, arrays)
        outputs = reached(targets)
        running.restart()
        running.lend(arrays)
        by_tensor = {running.net.resolve(name): array for name, array in reversed(outputs.items())}
        running.run(arrays | by_tensor | self._own(), self._profile)
        for name, array in outputs.items():  # of one tensor under two names
            if array is not by_tensor[running.net.resolve(name)]:
                if is_source(array):
                    raise UnsupportedError(f"out: {name} is another name of an output; pass an array for one of them")
                array[...] = by_tensor[running.net.resolve(name)].reshape(array.shape)
        return next(iter(targets.values())) if len(targets) == 1 else targets

    def backward(self, x: Any, dy: Any, dx: Any = None) -> dict[str, Any]:
        """The gradients of a plan with train="backward", from those of the outputs. Of one with train="both" those of the pass
        that `forward` made, of which it has what it needs until then; once for each.

        Parameters:
            x: as of `step`; with train="both" what `forward` was given, unchanged.
            dy: gradients of the outputs, batch x shape, in their dtypes; a dict by name where the graph has several outputs.
            dx: where gradients of inputs go: a dict of arrays by the name of the input, of its shape and dtype; default None: new
                arrays.

        Returns:
            gradients: by the name of the input or parameter, of all that the plan was asked for; zeros where no output depends
                on it.

        Raises:
            ShapeError, DtypeError: what does not fit.
            ArgumentError: train="both", and no forward pass since the last one.
        """
        net = self.plan.network
        running = self._of(net.mode if net.mode.pulls else Mode.BACKWARD, "backward")
        on = net.pause is not None
        if on and not running.paused:
            raise ArgumentError("backward: there is no forward pass that it could be of; call forward before each")
        arrays = inputs_of(net, x, self.plan.device.backend)
        if not on:
            running.lend(arrays)
        pulls = gradients_of(net, dy, self.plan.device.backend)
        gradients = pulled_of(net, dx, arrays | pulls)
        outputs = reached(gradients)
        arrays |= pulls | {net.gradients[name]: array for name, array in outputs.items()} | self._own()
        running.run(arrays, self._profile, on)
        self._stepped = True
        self.steps += on  # the next pass drops other values
        inputs = net.graph.inputs
        return gradients | {name: self._gradient(name) for name in net.wanted if name not in gradients or name not in inputs}

    @property
    def paused(self) -> bool:
        """Whether there is a pass forward whose gradients `backward` computes."""
        return self._main is not None and self._main.paused

    def _gradient(self, name: str) -> Any:
        """A copy of the gradient of a parameter; zeros where there is none."""
        running, net = self._open(), self.plan.network
        tensor = net.tensors.get(f"d.{name}")
        if name in net.graph.inputs or tensor is None or not tensor.role.lasting:
            shape, dtype = net.size_of(name)
            return np.zeros(shape, numpy_dtype(dtype))
        values = running.get(tensor).reshape(net.graph.parameters[name].shape)
        return values if self._scaled == 1 else values.astype(numpy_dtype(compute_dtype(tensor.dtype))) / self._scaled

    def _of(self, mode: Mode, what: str) -> Running:
        """What runs, of a plan of this mode. Raises UnsupportedError for another one."""
        running = self._open()
        if self.plan.network.mode is not mode:
            raise UnsupportedError(
                f"{what}: the plan is one of {self.plan.network.mode.words}; pass train={mode.given!r} to Graph.plan"
            )
        self._last = running
        return running

    def _open(self) -> Running:
        if self._main is None:
            raise OocError("session: it was closed; make another of the plan")
        if self._broken:
            raise OocError(f"session: {self._broken}; make another of the plan with parameters that were saved")
        return self._main

    @property
    def progress(self) -> float:
        """The share of the steps of the last run that are done, from 0 to 1; another thread may ask while it goes on."""
        return self._last.progress

    @contextmanager
    def profile(self, trace: bool = False) -> Iterator[Profile]:
        """What runs take: `with session.profile() as profile: session.step(x, labels)`, then `profile.kernels`. The times
        of all steps of the plan are read after each run, which is not in them.

        Parameters:
            trace: whether to keep when each step ran, for `NetworkPlan.trace(file, profile)`; half a kilobyte for each.

        Returns:
            profile: an `ooc.networks.Profile`, which counts all runs of the session inside.
        """
        self._open()
        self._profile = profile = Profile(self.plan.device.model, trace)
        try:
            yield profile
        finally:
            self._profile = None

    # ---- what is there

    def parameters(self) -> dict[str, Any]:
        """Copies of the parameters, by name."""
        return self._copies(Role.PARAMETER)

    def statistics(self) -> dict[str, Any]:
        """Copies of the running statistics of batch norms, by name."""
        return self._copies(Role.STATISTIC)

    def gradients(self) -> dict[str, Any]:
        """Copies of the gradients of the last step, by the name of their parameter; zeros of a frozen one. Those that were
        computed times a loss scale are divided by it, in float32 at least."""
        self._open()
        if not self._stepped:
            raise ArgumentError("gradients: no step was done yet")
        return {t.name: self._gradient(t.name) for t in self.plan.network.tensors.values() if t.role is Role.PARAMETER}

    def averages(self) -> dict[str, Any]:
        """Copies of the moving averages of the parameters, by name, in float32 at least; of a parameter that does not move, of
        itself. Raises ArgumentError where the optimizer has none."""
        return averaged(self.plan.network, self._open().get)

    def _copies(self, role: Role) -> dict[str, Any]:
        running = self._open()
        return {t.name: running.get(t) for t in self.plan.network.tensors.values() if t.role is role}

    def begin_with(self, parameters: Mapping[str, Any]) -> None:
        """Set parameters and running statistics, arrays by name; the others stay. Moving averages of what is set begin anew, and
        a pass forward that waits for its gradients is no more. Raises ArgumentError, DtypeError."""
        running, net = self._open(), self.plan.network
        if net.lent:
            raise ArgumentError("parameters: the plan has them lent; pass them with x in each call")
        arrays = checked(net.graph, parameters, self.plan.device.backend)
        running.restart()
        for name, values in arrays.items():
            for tensor in (t for t in net.lasting if name in (t.name, t.begins)):
                running.put(tensor, values)

    # ---- checkpoints

    def save(self, path: str | Path) -> None:
        """Write all that the next steps depend on, parameters, what the optimizer keeps, running statistics, seed and count of
        steps, to one file, for `Graph.restore`.

        Of a pass forward that waits for its gradients nothing is saved but the running statistics, which have moved.

        It is written beside the path and takes its place when it is on the disk: a crash at any moment leaves the old file or the
        new one. One tensor is in memory at a time.

        Parameters:
            path: of the file.

        Raises:
            StoreError: a full disk, a folder that is not there; the file that was there is whole.
            OocError: the session was closed, or broke.
        """
        running, net = self._open(), self.plan.network
        about = CheckpointHeader(digest(net.graph.to_json()), net.batch, self.seed, kind_of(net.optimizer), self.steps)
        write(path, about, ((t.name, bits(running.get(t))) for t in saving(net)))

    @classmethod
    def restored(cls, plan: Planned, saved: Saved) -> Session:
        """The session that was saved, on a plan of the same graph, batch and optimizer; see `Graph.restore`."""
        net = plan.network
        tensors = {t.name: t for t in saving(net)}
        if saved.names != set(tensors):
            odd = sorted(saved.names ^ set(tensors))
            raise ArgumentError(f"checkpoint {saved.path}: of other tensors: {', '.join(odd[:5])}")
        values = {name: unbits(saved.tensor(name, t.shape, stored(t.dtype)), t.dtype) for name, t in tensors.items()}
        shapes = {name: weights.shape for name, weights in net.graph.parameters.items()}
        parameters = {name: values[name].reshape(shape) for name, shape in shapes.items() if name in values}
        session = cls(plan, parameters, saved.about.seed)
        running = session._open()
        for name, t in tensors.items():
            if name not in parameters:
                running.put(t, values[name])
        session.steps = saved.about.steps
        return session

    # ---- what is given

    def _own(self) -> dict[str, Any]:
        """Inputs that follow from the step alone."""
        inputs: dict[str, Any] = {STEP: np.array([drawn(self.seed, self.steps)], np.int64)}
        optimizer = self.plan.network.optimizer
        if optimizer is not None:
            inputs |= optimizer.inputs(self.steps)
        return inputs

    def _loss_scale(self) -> float:
        """What gradients are multiplied by in this step."""
        net = self.plan.network
        if net.optimizer is None or not net.optimizer.scales or STATE not in net.tensors:
            return 1.0
        return net.optimizer.scale(self._open().get(net.tensors[STATE]))

    # ---- the end

    @property
    def packed_bytes(self) -> tuple[int, int]:
        """Bytes that what left in the last step took at home, and bytes that it has; equal without a codec."""
        stores = [] if self._main is None else self._main.packed
        return sum(s.packed for s in stores), sum(s.raw for s in stores)

    def close(self) -> None:
        """Give memory and files back."""
        for running in (self._inference, self._main):
            if running is not None:
                running.close()
        self._inference = self._main = None

    def __enter__(self) -> Session:
        """The session itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it; errors pass on."""
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_main", None) is not None:
            self.close()

    def __repr__(self) -> str:
        """One line: what is run, and how many steps are done."""
        return f"<Session of {self.plan!r}: {self.steps} steps>"
