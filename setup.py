"""Builds the native extension. Without a working C++ compiler the package installs anyway and computes with NumPy."""

from __future__ import annotations

import platform
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup
from setuptools.command.build_py import build_py

SOURCES = sorted(str(p) for p in Path("kernels").rglob("*.cpp"))
HEADERS = sorted(str(p) for pattern in ("*.hpp", "*.inl") for p in Path("kernels").rglob(pattern))


class Build(build_ext):
    """A failed build is a warning (the extension is optional)."""

    def build_extensions(self) -> None:
        for ext in self.extensions:
            ext.extra_compile_args += ["-O3", "-g0", "-pthread"]
            ext.extra_link_args += ["-pthread", *(["-ldl"] if platform.system() == "Linux" else [])]
        super().build_extensions()


class Sources(build_py):
    """Installs the CUDA source, which is compiled at run time, inside the package."""

    def run(self) -> None:
        super().run()
        if not getattr(self, "editable_mode", False):  # a work tree has it beside the package
            target = Path(self.build_lib) / "ooc" / "kernels" / "device"
            self.mkpath(str(target))
            for source in sorted(Path("kernels/device").glob("*.cu")):
                self.copy_file(str(source), str(target / source.name))


ParallelCompile("OOC_BUILD_JOBS", default=0).install()
setup(
    ext_modules=[Pybind11Extension("ooc._kernels", SOURCES, depends=HEADERS, cxx_std=17, optional=True)],
    cmdclass={"build_ext": Build, "build_py": Sources},
)
