"""ooc for bioimageio.core: its prediction pipeline with the model on the whole sample, under a memory budget."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ooc.errors import ArgumentError, OptionError, StoreError, UnsupportedError

try:
    from bioimageio.core._model_adapter import LocalModelAdapter  # the base of all of its adapters, exported nowhere
    from bioimageio.spec.model import v0_4, v0_5
    from onnx.helper import tensor_dtype_to_np_dtype
except ImportError as error:
    told = 'ooc.bioimageio: needs bioimageio.core, 0.11 or later, and onnx; pip install "ooc[bioimageio]"'
    raise ImportError(told, name=error.name) from None

from ooc.apply.models import fixed_at
from ooc.apply.packages import WEIGHTS
from ooc.files.records import understood
from ooc.networks import NetworkPlan
from ooc.networks.where import device_of
from ooc.onnx.model import OnnxModel, plain_input
from ooc.runtime.device import Device
from ooc.schedule.budget import parse_bytes

__all__ = ["Adapter"]


class Adapter(LocalModelAdapter):  # type: ignore[misc]
    """A model of bioimage.io whose ONNX weights run through ooc, for `bioimageio.core.create_prediction_pipeline`.

    It stands where bioimageio.core's own adapters do, which need memory for the whole sample, or take it in blocks: here the
    sample stays whole, without seams, and the computation keeps within the budget. What is done before and after the model stays
    bioimageio.core's, and so do blocks where they are asked for. A file that was exported for one size is taken at any other,
    where every node computes the same there. The plan of the last size is kept for the next call.

    Parameters:
        model_description: as `bioimageio.core.load_model` returns it, format 0.4 or 0.5, with ONNX weights.
        budget: of the device's memory, as `ooc.device` takes it ("8 GiB"); samples and results are beside it. Default None: the
            device's.
        device: an `ooc.Device` or a name that `ooc.device` takes, such as "auto"; default None: the current one, in each call.

    Raises:
        OptionError: something else than the description of a model.
        UnsupportedError: a model without ONNX weights; a device that is not here. In a prediction an operator that ooc has not.
        ArgumentError: a budget or a device that is none. In a prediction a size that the model does not take, a missing input.
        StoreError: weights that are not there, not those that the description was made of, or no ONNX file.
        DtypeError: in a prediction, an input of another type than the model's.
        BudgetError: a budget of less than one byte. In a prediction no plan fits; its smallest_bytes would do.

    Source: bioimageio.core.create_model_adapter.

    Example:
        >>> model = bioimageio.core.load_model("package.zip")
        >>> adapter = ooc.bioimageio.Adapter(model, budget="2 GiB")
        >>> pipeline = bioimageio.core.create_prediction_pipeline(model, model_adapter=adapter)
        >>> result = bioimageio.core.predict(model=pipeline, inputs=image).members["output"]
    """

    def __init__(
        self, model_description: Any, *, budget: int | float | str | None = None, device: Device | str | None = None
    ) -> None:
        if not isinstance(model_description, (v0_4.ModelDescr, v0_5.ModelDescr)):
            name = type(model_description).__name__
            raise OptionError(f"model_description: expected what bioimageio.core.load_model returns, got a {name}")
        weights = model_description.weights
        if weights.onnx is None:
            names = [WEIGHTS.get(n, n) for n in type(weights).model_fields if getattr(weights, n) is not None]
            raise UnsupportedError(
                f"model_description: its weights are {', '.join(names)}; ooc reads ONNX, which bioimageio.core.add_weights adds"
            )
        self.budget, self.device = budget, None if device is None else device_of(device)
        parse_bytes(budget, device_of(self.device).backend.total_bytes)
        self._model = OnnxModel(self._placed(weights.onnx))
        self._planned: tuple[Any, NetworkPlan] | None = None  # for which shapes and device, and how
        self._lock = threading.RLock()  # threads share the budget
        super().__init__(model_description, devices=None)

    def _placed(self, weights: Any) -> Path:
        """The file of weights, with what it has tensors in beside it: where they lie, or copies of those in a zipped package."""
        files = [weights, *filter(None, [getattr(weights, "external_data", None)])]
        with understood(weights.source, "weights that cannot be read", StoreError):
            readers = [file.get_reader() for file in files]  # which compares them with the hashes of the description
            folder = readers[0].original_root
            if not isinstance(folder, Path) or any(reader.original_root != folder for reader in readers):
                folder = Path(tempfile.mkdtemp(prefix="ooc-"))
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
                for reader in readers:
                    with open(folder / reader.original_file_name, "xb") as out:
                        shutil.copyfileobj(reader, out)
            return folder / str(readers[0].original_file_name)

    def _parse_devices(self, devices: Sequence[str] | None) -> Sequence[Device | None]:
        return (self.device,)

    def _init_model_on_device(self, device: Device | None) -> OnnxModel:
        return self._model  # pipelines load again before each prediction: it was read, and planned perhaps

    def _forward_impl(self, device: Device | None, model: OnnxModel, input_arrays: Sequence[Any]) -> list[Any]:
        file = model.model.graph
        constants = {t.name for t in file.initializer}
        inputs = dict(zip((i.name for i in file.input if i.name not in constants), input_arrays, strict=False))
        missing = [name for name, array in inputs.items() if array is None]
        if missing:
            raise ArgumentError(f"inputs: the model takes {', '.join(inputs)}, and there is no {', '.join(missing)}")
        with self._lock, self._plan(model, inputs, device_of(device)).session() as session:
            results = session.forward(inputs)
        outputs = file.output[: len(self.model_descr.outputs)]
        arrays = [results[o.name] if isinstance(results, dict) else results for o in outputs]
        types = [o.type.tensor_type.elem_type for o in outputs]  # whole numbers of 64 bits are computed in 32
        return [y.astype(tensor_dtype_to_np_dtype(t), copy=False) if t else y for y, t in zip(arrays, types, strict=True)]

    def _cleanup_pre_model_deletion(self, device: Device | None, model: OnnxModel) -> None:
        """Nothing: a session ends with its prediction."""

    def _cleanup_post_model_deletion(self, device: Device | None) -> None:
        """Nothing is left on the device."""

    def _plan(self, model: OnnxModel, inputs: dict[str, Any], device: Device) -> NetworkPlan:
        """How inputs of these shapes are computed."""
        shapes = {name: tuple(array.shape) for name, array in inputs.items()}
        if self._planned is None or self._planned[0] != (shapes, device):
            first = next(iter(shapes.values()))
            fixed_at(model, first[1:-1] if model.takes_last else first[2:])
            outputs = model.output_names[: len(self.model_descr.outputs)]
            graph = model.build(shapes, outputs, plain_input, first=False)
            self._planned = (shapes, device), graph.plan(batch=first[0], train=False, budget=self.budget, device=device)
        return self._planned[1]
