"""Compiled passes: what comes out is what came out without, in few forms, and nothing is written into what goes in."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Generator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import register_backend
from torch._dynamo.utils import counters

from agentdiff.engine import DecodeParams, Engine, load_family
from agentdiff.engine.families import compiled
from agentdiff.engine.families.compiled import GRAPHS, call_compiled, compile_module, has_graphs
from agentdiff.errors import ConfigurationError
from tests.engine.golden_runs import GOLDENS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch imports


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing compiled so far is taken again."""
    torch.compiler.reset()
    counters.clear()


class Halves(nn.Module):
    """A module with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != 3:
            raise ValueError("three columns, please")
        return x * self.weight


def test_a_module_is_compiled_once_for_all_sizes_and_gives_the_same() -> None:
    graphs: list[Any] = []

    @register_backend(name="counts")
    def counts(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    module = Halves()
    compile_module(module, "counts")
    for rows in (2, 5, 9):
        x = torch.ones(rows, 3)
        assert call_compiled(module, lambda x=x: module(x)).tolist() == [[0.5] * 3] * rows
    assert len(graphs) == 1
    assert not has_graphs(module)
    with pytest.raises(ValueError, match="three columns"):
        call_compiled(module, lambda: module(torch.ones(2, 4)))


def test_what_cannot_be_compiled_runs_as_it_is_and_says_so_once() -> None:
    @register_backend(name="refuses")
    def refuses(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("refused")

    module = Halves()
    compile_module(module, "refuses")
    x = torch.ones(2, 3)
    with pytest.warns(UserWarning, match="`torch_compile` failed .* Halves goes on uncompiled"):
        assert call_compiled(module, lambda: module(x)).sum() == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call_compiled(module, lambda: module(x)).sum() == 3


def test_a_backend_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"is 'inductr', .*inductor.*reduce-overhead"):
        compile_module(Halves(), "inductr")


def test_models_of_our_own_are_not_compiled() -> None:
    with pytest.raises(ConfigurationError, match="`torch_compile` is for models of transformers"):
        load_family(GOLDENS / "bd3lm", device="cpu", torch_compile="eager")


def test_more_forms_than_torch_allows_by_itself_are_compiled() -> None:
    class Powers(nn.Module):
        def forward(self, x: torch.Tensor, power: int) -> torch.Tensor:
            return x**power

    module = Powers()
    module.compile(backend="eager", dynamic=False)
    for power in range(2, 2 + 2 * torch._dynamo.config.recompile_limit):
        call_compiled(module, lambda power=power: module(torch.full((2,), 2.0), power))
    assert counters["frames"]["ok"] == 2 * torch._dynamo.config.recompile_limit


# -- CUDA graphs, as far as a CPU can tell --------------------------------------------------------


def test_what_a_replayed_pass_returns_is_the_callers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[None] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(None))
    module, memory = Halves(), torch.zeros(2, 3)
    compile_module(module, GRAPHS)
    assert has_graphs(module)
    # A graph writes its outputs where it wrote them before.
    replay = compiled._Graphed(lambda x: memory.copy_(x / 2))
    module._compiled_call_impl = replay  # pyright: ignore[reportAttributeAccessIssue]
    first, second = (
        call_compiled(module, lambda n=n: (module(torch.full((2, 3), n)), "as it is"))
        for n in (2.0, 4.0)
    )
    assert (first[0].unique().tolist(), second[0].unique().tolist()) == ([1.0], [2.0])
    assert first[1] == "as it is"
    assert len(begun) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["sdar", "llada", "diffusion_gemma"])
def test_on_a_gpu_no_pass_is_left_out(family: str) -> None:
    path = GOLDENS / family
    shaped = Engine.load(path, device="cuda", prefix_bytes=0, torch_compile=GRAPHS)
    for _ in range(3):  # to compile, to record, to replay
        shaped.generate(SHORT, PARAMS)
    assert all(part._compiled_call_impl for part in shaped.family.parts)  # pyright: ignore[reportAttributeAccessIssue]
    assert not counters["inductor"]["cudagraph_skips"]


def engines(family: str, backend: str) -> tuple[Engine, Engine]:
    """The same checkpoint, compiled and not."""
    path = GOLDENS / family
    return (
        Engine.load(path, device="cpu", prefix_bytes=0, torch_compile=backend),
        Engine.load(path, device="cpu", prefix_bytes=0),
    )


@pytest.fixture
def no_falling_back() -> Generator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


SHORT: Sequence[list[int]] = ([7, 8, 9], list(range(20, 61)))
LONG: Sequence[list[int]] = ([9] * 70, [3] * 20, [4] * 14)
PARAMS = DecodeParams(target=16, ceiling=16, eos_ids=())


@pytest.mark.slow
@pytest.mark.usefixtures("no_falling_back")
@pytest.mark.parametrize(
    ("family", "most"), [("sdar", 8), ("llada2", 8), ("llada", 4), ("diffusion_gemma", 16)]
)
def test_every_regime_writes_the_same_in_few_forms_without_a_break(family: str, most: int) -> None:
    """Forms differ in one row or several, one position or several, and in whether and how there is a past."""
    shaped, plain = engines(family, "eager")
    forms = [0]
    for prompts in (SHORT, LONG, SHORT[:1], SHORT, LONG):
        written = [o.tokens for o in shaped.generate(prompts, PARAMS)]
        assert written == [o.tokens for o in plain.generate(prompts, PARAMS)]
        forms.append(counters["frames"]["total"])
    assert not counters["graph_break"]
    assert counters["frames"]["ok"] == forms[-1] <= most
    assert forms[-1] == forms[3]  # shapes that were met are not compiled again


@pytest.mark.slow
@pytest.mark.usefixtures("no_falling_back")
@pytest.mark.parametrize("family", ["sdar", "llada", "diffusion_gemma"])
def test_ahead_of_time_every_regime_writes_the_same(family: str) -> None:
    shaped, plain = engines(family, "aot_eager")
    written = [o.tokens for o in shaped.generate(SHORT, PARAMS)]
    assert written == [o.tokens for o in plain.generate(SHORT, PARAMS)]
    assert counters["aot_autograd"]["ok"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("no_falling_back")
@pytest.mark.parametrize(
    ("family", "is_replayed"),
    [("sdar", False), ("sdar", True), ("llada", True), ("diffusion_gemma", True)],
)
def test_a_pass_that_is_replayed_writes_into_nothing_it_is_given(
    family: str, is_replayed: bool
) -> None:
    """Torch makes no CUDA graph of one that does."""
    written: list[Any] = []
    name = f"sees {family} {is_replayed}"

    @register_backend(name=name)
    def sees(graph: Any, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            changes = node.target is operator.setitem or str(node.target).endswith("_")
            if changes and node.op.startswith("call") and node.args[0].op == "placeholder":
                written.append(node)
        return graph

    shaped, plain = engines(family, name)
    for part in shaped.family.parts if is_replayed else ():  # pyright: ignore[reportAttributeAccessIssue]
        part._compiled_call_impl = compiled._Graphed(part._compiled_call_impl)
    for prompts in (SHORT, LONG):
        tokens = [o.tokens for o in shaped.generate(prompts, PARAMS)]
        assert tokens == [o.tokens for o in plain.generate(prompts, PARAMS)]
    assert bool(written) != is_replayed


@pytest.mark.slow
@pytest.mark.usefixtures("no_falling_back")
def test_torchs_own_compiler_writes_the_same() -> None:
    """On a CPU it makes no graphs, but the way there is the same."""
    shaped, plain = engines("llada", GRAPHS)
    written = [o.tokens for o in shaped.generate(SHORT, PARAMS)]
    assert written == [o.tokens for o in plain.generate(SHORT, PARAMS)]
