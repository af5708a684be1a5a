"""A network as its user has it: built, then planned."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ooc.errors import ArgumentError
from ooc.networks.build import Built
from ooc.networks.checkpoint import digest, refuse, saved
from ooc.networks.optimizers import Optimizer, kind_of
from ooc.networks.plan import NetworkPlan
from ooc.networks.planning import NetworkRequest, plan_network
from ooc.networks.session import Session
from ooc.runtime.call_options import flag
from ooc.runtime.device import Device


class Graph(Built):
    """A network: layers on named tensors.

        g = ooc.Graph("net")
        x = g.input("x", (3, 224, 224))
        h = g.conv(x, 64, 3, padding=1, bias=True, activation="relu")
        g.loss("cross_entropy", g.linear(g.flatten(h), 10, bias=True))
        plan = g.plan(batch=32, budget="2 GiB")

    Every method that adds a layer takes names of tensors and returns the name of what the layer makes: `name=`, or its kind
    and a number. Shapes are per sample, channels first. A graph that was planned takes no more layers.

    Parameters:
        name: of the network, for people.
    """

    def plan(
        self, *, batch: int, budget: int | float | str | None = None, policy: str = "auto", train: bool | str = True,
        device: Device | str | None = None, pinned: int | float | str | None = None, home: str | None = None,
        optimizer: Optimizer | None = None, deterministic: bool = False, gradients: Sequence[str] | str | None = None,
        lent: bool = False, **options: Any,
    ) -> NetworkPlan:  # fmt: skip
        """How a step of the network is computed under a budget: what is kept, moved and computed again.

        Parameters:
            batch: samples of a step.
            budget: of the device's memory, as `ooc.device` takes it; it overrides the device's and may exceed its memory; default
                None: the device's, and without one no limit.
            policy: "auto" (default): the plan that is predicted fastest, of its own and of all policies; or one of
                `ooc.networks.POLICIES`.
            train: True (default): loss, gradients and updates, for `session.step`; False: the outputs alone, for
                `session.forward`; "forward": the outputs as a training step has them, with statistics of the batch, which move
                the running ones, and dropout, for `session.forward`; "backward": gradients from given ones of the outputs, for
                `session.backward`, which computes the forward pass again; "both": `session.forward` as of "forward", then
                `session.backward`, for which as much of the forward pass is kept as the budget allows.
            device: an `ooc.Device` or a name that `ooc.device` takes; default None: the current one.
            pinned: limit of pinned host memory, as budget; default None: no limit.
            home: where what leaves the device goes: "pinned", "host" (pageable memory) or "disk" (one file, made before the first
                step); default None: pinned, on the CPU disk. Where device and host share memory, pinned and host count against
                the budget.
            optimizer: `ooc.SGD(...)`, `ooc.Adam(...)`, `ooc.AdamW(...)` or `ooc.RMSprop(...)`; default None: gradients alone.
            deterministic: True takes sums in an order that does not depend on the plan; default False: the device's.
            gradients: with train="backward" or "both", names of inputs and parameters whose gradients are wanted; default None:
                of all.
            lent: True: parameters and running statistics are the caller's arrays, given with x in each call under their names,
                and read where they lie; default False: the session has its own.
            **options: of the policy, such as score= and scheduler= of autoswap, codec= of vdnn++.

        Returns:
            plan: an `ooc.NetworkPlan`.

        Raises:
            BudgetError: no plan of the policy fits; its smallest_bytes, which the message names, would.
            ShapeError: an argument that makes no sense.
            UnsupportedError: the policy cannot serve this graph, a layer has no gradient.
        """
        plan = plan_network(
            self, batch, budget, policy, NetworkRequest.of(self, train, gradients, lent), device, pinned, home, optimizer,
            flag("deterministic", deterministic), options,
        )  # fmt: skip
        self._planned = True
        return plan

    def restore(self, path: str | Path, plan: NetworkPlan, seed: int | None = None) -> Session:
        """Go on where a session was saved, with the same losses bit for bit if the plan is the same, or deterministic.

        Parameters:
            path: what `session.save` wrote.
            plan: a plan of this graph at the same batch size, with an optimizer of the same kind; its policy, its budget and the
                optimizer's numbers may be others.
            seed: that the checkpoint must be of; default None: any.

        Returns:
            session: with parameters, states, running statistics, seed and `steps` as they were saved.

        Raises:
            ArgumentError: the file is of another graph, batch, optimizer or seed, which the message names, or is damaged.
            StoreError: the file cannot be read.
        """
        optimizer = kind_of(plan.network.optimizer)
        expected: dict[str, Any] = {"graph": digest(self.to_json()), "batch": plan.batch, "optimizer": optimizer}
        if plan.graph.to_json() != self.to_json():
            raise ArgumentError(f"restore: the plan is of another graph, {plan.graph.name}")
        with saved(path) as checkpoint:
            refuse(checkpoint.about, expected | ({} if seed is None else {"seed": seed}), path)
            return Session.restored(plan, checkpoint)

    # ---- for other libraries, whose packages stand above this one and are imported when they are asked for

    def to_onnx(self, path: str | Path | None = None, parameters: Mapping[str, Any] | None = None) -> bytes | None:
        """The network as an ONNX model for inference, which `ooc.onnx.load` reads back.

        Inputs, outputs and layers keep their names; batches are of any size. Losses are left out: where the graph has no outputs,
        what its losses read is the output. Batch normalisations are in f32 but in f64 graphs.

        Parameters:
            path: of the file, which is there as a whole or not at all; parameters of more than 2 GiB lie beside it, in a
                file named after them. Default None: bytes are returned.
            parameters: arrays by name, as `session.parameters() | session.statistics()`; default None, and for those that it has
                not: what sessions begin with, of seed 0.

        Returns:
            model: bytes; None where a path is given.

        Raises:
            UnsupportedError: a layer that ONNX has not, by its name; more than 2 GiB without a path; the onnx package is missing.
            ArgumentError: a graph without an end, parameters that do not fit.
            StoreError: the file cannot be written.
        """
        return importlib.import_module("ooc.onnx.export").export(self, path, parameters)  # type: ignore[no-any-return]

    def to_torch(self, parameters: Mapping[str, Any] | None = None) -> Any:
        """The network as a module of PyTorch, in evaluation, which `ooc.torch.graph` reads back.

        Layers with parameters, and dropout, are modules of `torch.nn` under the layers' names, so that the state_dict has these;
        the others are calls, see `module.code`. It takes the graph's inputs in order and returns its output, a dict by name where
        there are several. In training batch normalisations go by the batch, and dropout draws by PyTorch's generator.

        Parameters:
            parameters: as of `to_onnx`.

        Returns:
            module: a `torch.fx.GraphModule`.

        Raises:
            UnsupportedError: a layer that PyTorch has not, by its name.
            ArgumentError: as of `to_onnx`.
            ImportError: PyTorch is missing.
        """
        return importlib.import_module("ooc.torch.export").export(self, parameters)
