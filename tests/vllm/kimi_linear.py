"""A tiny random Kimi-Linear in vLLM: ``python kimi_linear.py SPECIFICATION.json RESULT.json``.

Every KDA call of the engine is kept, with its inputs as the layer passes them. Afterwards the calls
of each request are put together, in order, to whole sequences, and compared with the recurrence in
float64 from a zero state: a state that was lost, mixed up or rounded between steps would show.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

KDA = "vllm.models.kimi_k3.nvidia.ops.third_party.kda"
CHUNK = 64
ROWS = ("q", "k", "v", "raw_g", "raw_beta", "out")


@dataclass
class Request:
    """What one layer computed for one request, call by call."""

    calls: list[dict[str, torch.Tensor]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def rows(self, name: str) -> torch.Tensor:
        return torch.cat([call[name] for call in self.calls])


@dataclass
class Layer:
    """A KDA layer, known by its gate: finished requests and those that hold a slot."""

    A_log: torch.Tensor
    dt_bias: torch.Tensor
    lower_bound: float | None
    done: list[Request] = field(default_factory=list)
    running: dict[int, Request] = field(default_factory=dict)


class Calls:
    """Keeps the calls of the engine's layers."""

    def __init__(self) -> None:
        self.layers: dict[int, Layer] = {}

    def keep_all(self) -> None:
        """Stand between the layers and the functions that they import at each step."""
        package = importlib.import_module(KDA)
        for name, keep in (
            ("chunk_kda_with_fused_gate", self._prefill),
            ("fused_recurrent_kda_packed_decode", self._decode),
        ):
            setattr(package, name, keep(getattr(package, name)))

    def _layer(self, arguments: dict[str, Any], bias: torch.Tensor) -> Layer:
        a_log = arguments["A_log"]
        own = Layer(a_log.detach().clone(), bias.detach().clone(), arguments["lower_bound"])
        return self.layers.setdefault(a_log.data_ptr(), own)

    def _prefill(self, function: Any) -> Any:
        def call(**arguments: Any) -> Any:
            out, final = function(**arguments)
            layer = self._layer(arguments, arguments["g_bias"])
            metadata = metadata_of_step()
            slots = metadata.non_spec_state_indices_tensor.tolist()
            goes_on = metadata.has_initial_state.tolist()
            starts = arguments["cu_seqlens"].tolist()
            rows = {name: arguments[name][0] for name in ROWS[:-1]} | {"out": out[0]}
            for n, slot in enumerate(slots):
                if not goes_on[n]:
                    layer.done += [old for old in [layer.running.pop(slot, None)] if old]
                    layer.running[slot] = Request()
                request = layer.running[slot]
                part = slice(starts[n], starts[n + 1])
                request.calls.append({name: x[part].clone() for name, x in rows.items()})
                request.steps.append("chunk" if goes_on[n] else "first")
            return out, final

        return call

    def _decode(self, function: Any) -> Any:
        def call(**arguments: Any) -> Any:
            mixed, state = arguments["mixed_qkv"].clone(), arguments["initial_state"]
            rows = dict(zip("qkv", (x[:, 0] for x in unpack(mixed, state)), strict=True))
            rows |= {name: arguments[name][0].clone() for name in ("raw_g", "raw_beta")}
            out, pool = function(**arguments)
            layer = self._layer(arguments, arguments["dt_bias"])
            for n, slot in enumerate(arguments["state_indices"].tolist()):
                request = layer.running[slot]
                part = {name: x[n : n + 1].clone() for name, x in (rows | {"out": out[0]}).items()}
                request.calls.append(part)
                request.steps.append("token")
            return out, pool

        return call


def metadata_of_step() -> Any:
    """Metadata of the KDA layers; all share it."""
    from vllm.forward_context import get_forward_context

    return next(iter(get_forward_context().attn_metadata.values()))


def unpack(mixed: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    from fa_triton.vllm.kda.operands import unpacked_qkv

    return unpacked_qkv(mixed, state)


def judge(layer: Layer, request: Request) -> dict[str, Any]:
    """Error of a request's result against the recurrence over all of its tokens.

    The yardstick is the error of the chunked form that rounds what must be stored, nothing else.
    """
    from fa_triton.kda_reference import chunk_kda_reference, kda_recurrent_reference

    rows = {name: request.rows(name)[None] for name in ROWS}
    inputs = (*(rows[name] for name in ROWS[:-1]), rows["q"].shape[-1] ** -0.5)
    options: dict[str, Any] = {
        "safe_gate": layer.lower_bound is not None,
        "lower_bound": layer.lower_bound,
        "use_gate_in_kernel": True,
        "A_log": layer.A_log,
        "dt_bias": layer.dt_bias,
        "use_qk_l2norm_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
    }
    exact, _ = kda_recurrent_reference(*inputs, **options)
    emulated = chunk_kda_reference(
        *inputs, CHUNK, outputs=("attn_out",), emulate=rows["q"].dtype, **options
    ).attn_out

    def error(result: torch.Tensor) -> float:
        return ((result.double() - exact).square().mean() / exact.square().mean()).sqrt().item()

    return {
        "tokens": exact.shape[1],
        "error": error(rows["out"]),
        "yardstick": error(emulated),
        "steps": request.steps,
    }


def randomise(model: torch.nn.Module) -> None:
    """Weights that make gates, step sizes and states of every size."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.5 if name.endswith(("A_log", "dt_bias")) else 0.1
            if "norm" in name:
                parameter.fill_(1.0)
            elif parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(spread * noise)


def main() -> None:
    """Generate, and judge what the layers computed."""
    asked = json.loads(Path(sys.argv[1]).read_text())
    from vllm import LLM, SamplingParams

    calls = Calls()
    llm = LLM(**asked["engine"])
    llm.apply_model(randomise)
    if asked["loses_states"]:
        from vllm.model_executor.layers.mamba.gdn import kimi_gdn_linear_attn as layers

        own = layers.gather_initial_states
        layers.gather_initial_states = lambda *a: torch.zeros_like(own(*a))
    calls.keep_all()
    sampling = SamplingParams(
        temperature=0, max_tokens=asked["max_tokens"], ignore_eos=True, detokenize=False
    )
    outputs = llm.generate(asked["prompts"], sampling, use_tqdm=False)
    requests = [
        judge(layer, request)
        for layer in calls.layers.values()
        for request in (*layer.done, *layer.running.values())
    ]
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    result = {"requests": requests, "tokens": tokens, "layers": len(calls.layers)}
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
