"""What happened: `Report`, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ooc.errors import brief
from ooc.model.simulate import Timeline
from ooc.runtime.machine import Measured
from ooc.runtime.timeline import Bars, Times, rows
from ooc.schedule.budget import show_bytes
from ooc.schedule.lowering import STEP_BYTES, Schedule
from ooc.schedule.plan import Plan
from ooc.schedule.steps import LANES, lane_totals, moved_bytes


@dataclass(frozen=True)
class RemainingSteps:
    """Sums over steps that are not kept.

    Fields:
        steps: their number.
        seconds: when the last of them ended, from the start of the part.
        lane_seconds: their busy seconds on every lane.
        lane_bytes: the bytes that they moved on every lane.
        window: the most of them that were there at once.
        algorithms: see `Measured`.
    """

    steps: int = 0
    seconds: float = 0.0
    lane_seconds: Mapping[str, float] = field(default_factory=dict)
    lane_bytes: Mapping[str, int] = field(default_factory=dict)
    window: int = 0
    algorithms: Mapping[str, int] = field(default_factory=dict)

    def and_more(self, part: Part) -> RemainingSteps:
        """With the steps of another part, which came later."""
        seconds, nbytes = lane_totals((self.lane_seconds, part.lane_seconds)), lane_totals((self.lane_bytes, part.lane_bytes))
        algorithms = lane_totals((self.algorithms, part.algorithms))
        return RemainingSteps(self.steps + part.steps, part.seconds, seconds, nbytes, max(self.window, part.steps), algorithms)


@dataclass(frozen=True)
class Part:
    """One executed schedule with its times.

    Fields:
        schedule: the linked steps of a plan (`schedule.steps`), and the plan itself (`schedule.plan`).
        measured: start and end of every step, in seconds from the start, and the bytes held in each space.
        predicted: the same times by the model, for calls with `trace=`; default None.
        rest: sums over the steps that came after those of `schedule`, of which a long plan keeps the first alone (unless
            `trace=` asks for all); default None: there are no others.
    """

    schedule: Schedule
    measured: Measured
    predicted: Timeline | None = None
    rest: RemainingSteps | None = None

    def cut(self, most_steps: int) -> Part:
        """With so many steps kept, and sums over the others."""
        steps, times = self.schedule.steps, self.measured
        kept, others = (
            Part(replace(self.schedule, steps=steps[at]), Measured(times.starts[at], times.ends[at], times.space_bytes, ran))
            for at, ran in ((slice(most_steps), times.algorithms), (slice(most_steps, None), {}))
        )
        return replace(kept, rest=RemainingSteps().and_more(others))

    def __repr__(self) -> str:
        """One line: the op, its steps and their seconds."""
        what = brief(str(self.schedule.plan.op), 400)
        return f"<Part {what}: {self.steps} steps in {self.seconds:.3g} s>"

    @property
    def steps(self) -> int:
        """Number of steps, those that are not kept included."""
        return len(self.schedule.steps) + (self.rest.steps if self.rest else 0)

    @property
    def seconds(self) -> float:
        """Seconds from the start to the end of the last step."""
        return self.rest.seconds if self.rest else self.measured.seconds

    @property
    def times(self) -> Times:
        """The steps with their times, as measured."""
        return self.timelines["measured"]

    @property
    def timelines(self) -> dict[str, Times]:
        """The steps with their times: "measured", and "predicted" where there are any."""
        known = {"measured": self.measured, "predicted": self.predicted}
        return {name: Times(self.schedule.steps, times.starts, times.ends) for name, times in known.items() if times is not None}

    @property
    def lane_seconds(self) -> dict[str, float]:
        """Busy seconds of every lane, as measured."""
        busy: dict[str, float] = {}
        for step, lo, hi in zip(*self.times, strict=True):
            busy[step.lane] = busy.get(step.lane, 0.0) + hi - lo
        return lane_totals((busy, self.rest.lane_seconds)) if self.rest else busy

    @property
    def algorithms(self) -> dict[str, int]:
        """How many tiles each algorithm of a library computed: see `Measured`."""
        return lane_totals((self.measured.algorithms, self.rest.algorithms if self.rest else {}))

    @property
    def lane_bytes(self) -> dict[str, int]:
        """Bytes moved by every copy lane."""
        moved = moved_bytes(self.schedule.steps)
        return lane_totals((moved, self.rest.lane_bytes)) if self.rest else moved


@dataclass(frozen=True)
class Report:
    """What a call did: its plans, bytes and seconds per lane, predicted and measured, and its peak memory. Print it to see it.

    Lanes: read (from files), h2d (to the device, and every load of the CPU's), compute, d2h (back), write (to files).

    Fields:
        parts: the schedules that were executed one after the other, each with its steps and their times.
        seconds: of the whole call, planning and opening of files included.
        peak_bytes: device memory held at the peak, measured; on a CPU, staging and spill space too, and units of files that are
            decoded.
        units_bytes: of memory that those units may take, beside what the plans do.
    """

    parts: tuple[Part, ...]
    seconds: float
    peak_bytes: int
    units_bytes: int = 0

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of every part: one, or several of a fused op that was cut."""
        return tuple(p.schedule.plan for p in self.parts)

    @property
    def tiles(self) -> int:
        """Number of tiles computed, over all parts."""
        return sum(p.tiles for p in self.plans)

    @property
    def predicted_seconds(self) -> float:
        """Seconds that the plans predicted for the steps."""
        return sum(p.predicted_seconds for p in self.plans)

    @property
    def predicted_peak_bytes(self) -> int:
        """Device memory that the plans predicted at the peak, in bytes, with what units may take."""
        return max((p.peak_bytes for p in self.plans), default=0) + self.units_bytes

    @property
    def schedule_bytes(self) -> int:
        """Host memory that the steps themselves took at the peak, outside the budget, in bytes, at most: what is kept for this
        report, and of a long plan two windows while it ran."""
        kept = sum(p.schedule.nbytes for p in self.parts)
        return kept + 2 * STEP_BYTES * max((p.rest.window for p in self.parts if p.rest), default=0)

    @property
    def lane_bytes(self) -> dict[str, int]:
        """Bytes moved by every copy lane, over all parts."""
        return lane_totals(p.lane_bytes for p in self.parts)

    @property
    def lane_seconds(self) -> dict[str, float]:
        """Busy seconds of every lane, as measured, over all parts."""
        return lane_totals(p.lane_seconds for p in self.parts)

    @property
    def algorithms(self) -> dict[str, int]:
        """On a CUDA device, how many tiles (of each convolution, where several are fused) each algorithm computed: "cudnn 1" and
        so on by cuDNN's numbers, "cuda" by kernels of ooc's own because cuDNN refused; over all parts."""
        return lane_totals(p.algorithms for p in self.parts)

    @property
    def fallbacks(self) -> int:
        """Number of tiles that cuDNN was planned for and kernels of ooc's own computed, many times slower; a warning says why."""
        return self.algorithms.get("cuda", 0)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds in which steps ran: `seconds` without planning and opening of files."""
        return sum(p.seconds for p in self.parts)

    @property
    def overlap_efficiency(self) -> float:
        """Busy seconds of the busiest lane over `elapsed_seconds`; 1.0 means that everything else hid behind it."""
        busiest = sum(max(p.lane_seconds.values(), default=0.0) for p in self.parts)
        return busiest / self.elapsed_seconds if self.elapsed_seconds else 1.0

    @property
    def bound_seconds(self) -> float:
        """What no run takes less than, as far as the calibration knows the machine: `Plan.bound_seconds`, over all parts."""
        return sum(p.bound_seconds for p in self.plans)

    @property
    def bound_share(self) -> float:
        """`bound_seconds` over `elapsed_seconds`: 1.0 is as fast as the model thinks possible, also where a run is faster still
        because the machine is faster than its calibration."""
        return min(1.0, self.bound_seconds / self.elapsed_seconds) if self.elapsed_seconds else 1.0

    def __repr__(self) -> str:
        """One line: the work, tiles, seconds and peak memory."""
        parts = f" in {len(self.parts)} parts" if len(self.parts) > 1 else ""
        took = f"{self.tiles} tiles in {self.seconds:.3g} s"
        return f"<Report {brief(self._what, 400)}{parts}: {took}, peak {show_bytes(self.peak_bytes)}>"

    @property
    def _what(self) -> str:
        return "; ".join(str(plan.op) for plan in self.plans) or "nothing"

    def __str__(self) -> str:
        """What `print` shows: tiles, seconds and bytes per lane, memory and the bound, a line each."""
        return "\n".join(f"{name:<9} {value}" for name, value in self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        seconds, nbytes = self.lane_seconds, self.lane_bytes
        lanes = " ".join(f"{lane} {seconds[lane]:.3g} s" for lane in LANES if lane in seconds)
        moved = " ".join(f"{lane} {show_bytes(nbytes[lane])}" for lane in LANES if lane in nbytes)
        return [
            ("tiles", f"{self.tiles}"),
            ("time", f"{self.seconds:.3f} s measured, {self.predicted_seconds:.3f} s predicted"),
            ("lanes", lanes),
            ("moved", moved or "nothing"),
            ("memory", f"peak {show_bytes(self.peak_bytes)} measured, {show_bytes(self.predicted_peak_bytes)} predicted"),
            ("steps", f"{sum(p.steps for p in self.parts)}, {show_bytes(self.schedule_bytes)} of them at once"),
            *([("ran", ", ".join(f"{name}: {tiles}" for name, tiles in self.algorithms.items()))] if self.algorithms else []),
            *(
                [("refused", f"{self.fallbacks} tiles by cuDNN, computed by slower kernels of ooc's own")]
                if self.fallbacks
                else []
            ),
            ("overlap", f"{self.overlap_efficiency:.0%}"),
            ("bound", f"{self.bound_seconds:.3g} s{self._reached}"),
        ]

    @property
    def _reached(self) -> str:
        """How near to the bound the run came; one that is faster says something of the calibration, not of the run."""
        if self.elapsed_seconds >= self.bound_seconds:
            return f", {self.bound_share:.0%} reached"
        named = " and ".join(dict.fromkeys(brief(p.calibration, 60) for p in self.plans if p.calibration)) or "none"
        return f" is not this machine's, which is faster than its calibration ({named}): measure it with ooc calibrate"

    def _repr_html_(self) -> str:
        """What a notebook shows: the facts, and what every lane did over time."""
        from ooc.runtime.drawing import draw
        from ooc.schedule.notebook import page

        return page([("report", self._what), *self._facts()], draw(lanes_of(self.parts)))


def lanes_of(parts: Sequence[Part]) -> dict[str, list[Bars]]:
    """What every lane did over time: "measured", and "predicted" where that is known of all parts."""
    timelines = [part.timelines for part in parts]
    known = [name for name in ("measured", "predicted") if all(name in part for part in timelines)]
    return {name: rows(part[name] for part in timelines) for name in known}
