#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.8", "numpy", "gguf>=0.17", "tokenizers>=0.20"]
# ///
"""Trains a DSpark drafter for your own model, from nothing but the model.

    uv run docs/train-drafter.py --target model.gguf --out drafter.gguf

A drafter is a small transformer that reads a few of the target's hidden layers and guesses its next tokens. It
belongs to one target: one made for another model guesses badly, though it can't change what is said. This script

1. lets the target write questions (or takes yours: --prompts) and answer them, half of them greedily, half at
   temperature 0.8, because a drafter learns best from the target's own words;
2. trains the drafter on the target's distributions of those answers;
3. drafts and verifies greedily on prompts it has not learned from, and says how many drafts were right;
4. fits, on further such prompts, one temperature a slot, so that the confidence it states is the share it gets right;
5. writes OUT (a GGUF file, complete or not at all) and OUT.eval.json.

The target is a GGUF file of architecture qwen35moe (split files too: name one part), unpacked to two bytes a weight on
a GPU and four on a CPU, or a Hugging Face folder (needs `transformers`; --gguf then names the GGUF file that you run, for
the tokenizer). A stopped run goes on where its last checkpoint was (OUT.state) when it is started again with the same
arguments (--seconds and --steps may be others). --evaluate measures a finished drafter instead of training one.

Needs PyTorch, numpy, gguf and tokenizers; `uv run` installs them.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# ------------------------------------------------------------------------------------------------ words and messages


class Refused(Exception):
    """Input that can't be used. The message names the thing, its value, and what would be right."""


def say(text: str) -> None:
    """Progress, to the error stream, so that the output stream holds the result alone."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def write_atomically(path: Path, write) -> None:
    """Calls `write(temporary path)` and puts the result in place of `path`, so that a half-written file never bears its name."""
    temporary = path.with_name(path.name + ".part")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------ GGUF files


class GgufFile:
    """Metadata and tensors of a GGUF file, or of all parts of a split one."""

    def __init__(self, path: Path):
        self.path = path
        readers = []
        for part in self._parts(path):
            if not part.is_file():
                raise Refused(f"{part}: no such file; a split model needs all its parts in one folder")
            try:
                readers.append(gguf.GGUFReader(part))
            except (ValueError, IndexError, OSError) as error:
                raise Refused(f"{part} is not a GGUF file that can be read ({error}); give a whole GGUF file of version 2 or 3") from error
        self.fields = readers[0].fields
        self.tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}

    @staticmethod
    def _parts(path: Path) -> list[Path]:
        split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
        if not split:
            return [path]
        n_parts = int(split[2])
        return [path.with_name(f"{split[1]}-{i:05}-of-{n_parts:05}.gguf") for i in range(1, n_parts + 1)]

    def get(self, key: str, default=None):
        field = self.fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str):
        if key not in self.fields:
            raise Refused(f"{self.path} has no metadata {key}, which its architecture needs; convert the model again")
        return self.get(key)

    def values(self, name: str) -> np.ndarray:
        """A tensor as 32-bit floats, slowest dimension first."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise Refused(f"{self.path} has no tensor {name}, which its architecture needs; convert the model again")
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise Refused(f"tensor {name} of {self.path} has type {tensor.tensor_type.name}, which gguf can't unpack; give a copy of the model in BF16 or Q8_0") from error
        return np.require(values.reshape([int(n) for n in reversed(tensor.shape)]), np.float32, ["C", "W"])


# How text is cut before byte pairs are merged, by `tokenizer.ggml.pre`.
_SPLITS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5


class Vocabulary:
    """The tokenizer of a GGUF file, and the tokens that end an answer or can't be said."""

    def __init__(self, file: GgufFile):
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

        kind, split = file.need("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "absent")
        if kind != "gpt2" or split not in _SPLITS:
            raise Refused(f"{file.path} has tokenizer {kind} with pre-tokenizer {split}; gpt2 with {' or '.join(_SPLITS)} is known")
        tokens = file.need("tokenizer.ggml.tokens")
        types = file.get("tokenizer.ggml.token_type") or [1] * len(tokens)
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.n = len(tokens)
        merges = [tuple(merge.split(" ", 1)) for merge in file.need("tokenizer.ggml.merges")]
        self._tokenizer = Tokenizer(models.BPE(self.ids, merges))
        self._tokenizer.normalizer = normalizers.NFC()
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(_SPLITS[split]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
        self._tokenizer.decoder = decoders.ByteLevel()
        for wanted in (_CONTROL, _USER_DEFINED):
            added = [AddedToken(token, normalized=False, special=wanted == _CONTROL) for token, kind in zip(tokens, types) if kind == wanted]
            (self._tokenizer.add_special_tokens if wanted == _CONTROL else self._tokenizer.add_tokens)(added)
        self.unused = [i for i, kind in enumerate(types) if kind == _UNUSED]
        ends = {self.ids.get("<|im_end|>"), self.ids.get("<|endoftext|>"), file.get("tokenizer.ggml.eos_token_id")}
        self.ends = sorted(ends - {None})

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def mask(self, wish: str | None) -> int:
        """The token that stands for "not yet known" in a block: one that the target never says."""
        for token in [wish] if wish else ["<|fim_pad|>", "<|mask|>", "<mask>"]:
            if token in self.ids:
                return self.ids[token]
        said = f"has no token {wish}" if wish else "has neither <|fim_pad|> nor <|mask|>"
        raise Refused(f"the vocabulary {said}; name with --mask-token a token that the model never says")


# ------------------------------------------------------------------------------------------------ the target


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def l2(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the first channels of each head, paired half by half. x [B, heads, S, d]; cos, sin [B or 1, 1, S, n / 2]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


def delta_rule(q, k, v, beta, g, chunk: int = 64):
    """The gated delta rule over whole sequences, from a zero state.

    q, k [B, h, S, d_k] (normalised, q scaled), v [B, h, S, d_v], beta and g (log of the decay) [B, h, S]; all float32.
    -> outputs [B, h, S, d_v], last state [B, h, d_k, d_v]. Positions with beta = g = 0 leave the state as it is.
    Chunks follow each other; what doesn't need the state is computed for all of them at once.
    """
    batch, heads, length, _ = q.shape
    pad = -length % chunk
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        beta, g = F.pad(beta, (0, pad)), F.pad(g, (0, pad))
    n = (length + pad) // chunk
    q, k, v = (x.reshape(batch, heads, n, chunk, -1) for x in (q, k, v))
    beta = beta.reshape(batch, heads, n, chunk, 1)
    total = g.reshape(batch, heads, n, chunk).cumsum(-1)
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    # Differences first and masked before the exponential, so that no exponent is ever positive.
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(later, -math.inf).exp()
    mixed = ((beta * k) @ k.mT * decay).tril(-1)
    right = torch.cat([beta * v, beta * k * total.exp()[..., None]], -1)
    solved = torch.linalg.solve_triangular(mixed + torch.eye(chunk, device=q.device), right, upper=False, unitriangular=True)
    from_values, from_keys = solved.split([v.shape[-1], k.shape[-1]], -1)
    seen = q @ k.mT * decay
    state = q.new_zeros(batch, heads, k.shape[-1], v.shape[-1])
    outputs = []
    for i in range(n):
        corrected = from_values[:, :, i] - from_keys[:, :, i] @ state
        outputs.append((q[:, :, i] * total[:, :, i, :, None].exp()) @ state + seen[:, :, i] @ corrected)
        last = total[:, :, i, -1:]
        state = state * last[..., None].exp() + (k[:, :, i] * (last - total[:, :, i]).exp()[..., None]).mT @ corrected
    return torch.cat(outputs, 2)[:, :, :length], state


def tokens_per_pass(target) -> int:
    """Tokens that are read together: as many as keep a GPU busy, and their inner values small beside the weights."""
    return max(2048, 2**25 // target.hidden) if target.device.type == "cuda" else 4096


def grouped(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows x [N, in] in the order of their experts, weights [E, out, in]; rows of expert e end at ends[e]. -> [N, out]"""
    if x.is_cuda and x.dtype == torch.bfloat16:
        product = getattr(F, "grouped_mm", None) or torch._grouped_mm
        return product(x, weights.mT, offs=ends)
    parts, start = [], 0
    for expert, end in enumerate(ends.tolist()):
        if end > start:
            parts.append(F.linear(x[start:end], weights[expert]))
        start = end
    return torch.cat(parts)


@dataclass
class Memory:
    """What a target remembers of a batch of sequences while it writes them."""

    lengths: torch.Tensor                     # [B]
    keys: dict[int, torch.Tensor]             # layer -> [B, n_kv, capacity, d]
    values: dict[int, torch.Tensor]
    windows: dict[int, torch.Tensor]          # layer -> [B, kernel - 1, channels], inputs of the convolution
    states: dict[int, torch.Tensor]           # layer -> [B, n_v, d_k, d_v]
    filled: int = 0                           # no sequence is longer

    def _map(self, change) -> "Memory":
        tables = [{i: change(x) for i, x in table.items()} for table in (self.keys, self.values, self.windows, self.states)]
        return Memory(change(self.lengths), *tables, self.filled)

    def part(self, first: int, end: int) -> "Memory":
        """Rows first..end, in the same memory."""
        return self._map(lambda x: x[first:end])

    def keep(self, rows: torch.Tensor) -> "Memory":
        return self._map(lambda x: x[rows])


class Qwen35Moe:
    """The text part of a Qwen3.5-MoE model: gated delta-net layers, some of full attention, experts in each."""

    def __init__(self, file: GgufFile, device: torch.device, dtype: torch.dtype):
        get = lambda name: file.need(f"qwen35moe.{name}")
        optional = lambda name, default: file.get(f"qwen35moe.{name}", default)
        self.device, self.dtype = device, dtype
        self.n_layers = get("block_count") - optional("nextn_predict_layers", 0)
        self.hidden, self.eps = get("embedding_length"), get("attention.layer_norm_rms_epsilon")
        self.context = get("context_length")
        self.heads = get("attention.head_count")
        kv = optional("attention.head_count_kv", self.heads)
        self.kv_heads = max(kv) if isinstance(kv, list) else kv
        self.head = optional("attention.key_length", self.hidden // self.heads)
        self.rotated = optional("rope.dimension_count", self.head)
        self.theta = optional("rope.freq_base", 10000.0)
        self.top = optional("expert_used_count", 0)
        self.top = max(self.top) if isinstance(self.top, list) else self.top
        self.kernel, self.d_k = get("ssm.conv_kernel"), get("ssm.state_size")
        self.n_k, self.n_v = get("ssm.group_count"), get("ssm.time_step_rank")
        self.d_v = get("ssm.inner_size") // self.n_v
        every = optional("full_attention_interval", 4)
        linear = optional("attention.recurrent_layers", None) or [(i + 1) % every != 0 for i in range(self.n_layers)]
        # Value head h belongs to key head h mod n_k where a converter has reordered them, as all of today do.
        tiled = optional("ssm.v_head_reordered", True)
        self.key_head = torch.tensor([h % self.n_k if tiled else h // (self.n_v // self.n_k) for h in range(self.n_v)], device=device)
        load = lambda name, kind=dtype: torch.from_numpy(file.values(name)).to(device, kind)
        self.embed = load("token_embd.weight")
        self.out = load("output.weight") if "output.weight" in file.tensors else self.embed
        self.norm = load("output_norm.weight", torch.float32)
        self.vocabulary = self.embed.shape[0]
        self.layers = []
        for i in range(self.n_layers):
            self.layers.append(self._layer(file, i, bool(linear[i]), load))
            if i % 8 == 7:
                say(f"unpacked {i + 1} of {self.n_layers} layers")

    def _layer(self, file: GgufFile, i: int, linear: bool, load) -> dict[str, torch.Tensor]:
        at = lambda name: f"blk.{i}.{name}"
        exact = lambda name: load(at(name), torch.float32)
        w = {"norm": exact("attn_norm.weight"), "moe_norm": exact("post_attention_norm.weight")}
        if linear:
            w |= {name: load(at(f"{tensor}.weight")) for name, tensor in (
                ("qkv", "attn_qkv"), ("z", "attn_gate"), ("b", "ssm_beta"), ("a", "ssm_alpha"), ("o", "ssm_out"))}
            dt = "ssm_dt.bias" if at("ssm_dt.bias") in file.tensors else "ssm_dt"
            w |= {"conv": exact("ssm_conv1d.weight"), "decay": exact("ssm_a"), "dt": exact(dt), "gate_norm": exact("ssm_norm.weight")}
        else:
            if at("attn_qkv.weight") in file.tensors:
                kv = self.kv_heads * self.head
                parts = load(at("attn_qkv.weight")).split([2 * self.heads * self.head, kv, kv])
            else:
                parts = [load(at(f"attn_{x}.weight")) for x in "qkv"]
            w |= dict(zip("qkv", parts))
            w |= {"o": load(at("attn_output.weight")), "q_norm": exact("attn_q_norm.weight"), "k_norm": exact("attn_k_norm.weight")}
        if at("ffn_gate_up_exps.weight") in file.tensors:
            w["gate_up"] = load(at("ffn_gate_up_exps.weight"))
        else:
            w["gate_up"] = torch.cat([load(at("ffn_gate_exps.weight")), load(at("ffn_up_exps.weight"))], 1)
        w |= {"down": load(at("ffn_down_exps.weight")), "router": exact("ffn_gate_inp.weight")}
        w |= {f"shared_{name}": load(at(f"ffn_{name}_shexp.weight")) for name in ("gate", "up", "down")}
        w["shared_share"] = exact("ffn_gate_inp_shexp.weight").reshape(1, -1)
        return w

    def row_bytes(self, capacity: int) -> int:
        """About what one sequence of at most `capacity` tokens takes while it is written."""
        size = self.embed.element_size()
        full = sum("q" in w for w in self.layers)
        attention = full * 2 * self.kv_heads * self.head * capacity * size
        recurrent = (self.n_layers - full) * (self.n_v * self.d_k * self.d_v * 4 + self.layers[0]["conv"].shape[0] * self.kernel * size)
        return 2 * (attention + recurrent) + 4 * 4 * self.vocabulary

    def memory(self, rows: int, capacity: int) -> Memory:
        new = lambda *shape, kind=self.dtype: torch.zeros(rows, *shape, device=self.device, dtype=kind)
        full = [i for i, w in enumerate(self.layers) if "q" in w]
        linear = [i for i, w in enumerate(self.layers) if "q" not in w]
        cache = lambda: {i: new(self.kv_heads, capacity, self.head) for i in full}
        return Memory(
            torch.zeros(rows, dtype=torch.long, device=self.device), cache(), cache(),
            {i: new(self.kernel - 1, self.layers[i]["conv"].shape[0]) for i in linear},
            {i: new(self.n_v, self.d_k, self.d_v, kind=torch.float32) for i in linear})

    @torch.no_grad()
    def read(self, ids, lengths, taps=(), memory: Memory | None = None):
        """Whole sequences: ids [B, S], filled up on the right; lengths [B]. -> (tapped outputs [B, S, T*H], normed hidden [B, S, H])"""
        position = torch.arange(ids.shape[1], device=self.device)[None]
        return self._pass(ids, position, position < lengths[:, None], lengths, taps, memory, step=False)

    @torch.no_grad()
    def step(self, ids, memory: Memory):
        """The next token of every sequence: ids [B]. -> normed hidden [B, H]"""
        position = memory.lengths[:, None]
        memory.filled += 1
        hidden = self._pass(ids[:, None], position, None, None, (), memory, step=True)[1][:, 0]
        memory.lengths += 1
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden.to(self.out.dtype), self.out).float()

    def _pass(self, ids, position, real, lengths, taps, memory, step):
        angle = position[:, None, :, None].double() * self.theta ** (-torch.arange(0, self.rotated, 2, device=self.device).double() / self.rotated)
        cos, sin = angle.cos().float(), angle.sin().float()
        x, tapped = F.embedding(ids, self.embed), []
        for i, w in enumerate(self.layers):
            y = rms(x, w["norm"], self.eps)
            if "q" in w:
                x = x + self._attend(y, w, cos, sin, i, memory, step)
            else:
                x = x + self._remember(y, w, real, lengths, i, memory, step)
            x = x + self._experts(rms(x, w["moe_norm"], self.eps), w)
            if i in taps:
                tapped.append(x)
        if memory is not None and not step:
            memory.lengths.copy_(lengths)
        return torch.cat(tapped, -1) if tapped else None, rms(x, self.norm, self.eps)

    def _attend(self, y, w, cos, sin, i, memory, step):
        batch, length, _ = y.shape
        q, gate = F.linear(y, w["q"]).view(batch, length, self.heads, 2 * self.head).chunk(2, -1)
        k = F.linear(y, w["k"]).view(batch, length, self.kv_heads, self.head)
        v = F.linear(y, w["v"]).view(batch, length, self.kv_heads, self.head).transpose(1, 2)
        q = rotate(rms(q, w["q_norm"], self.eps).transpose(1, 2), cos, sin)
        k = rotate(rms(k, w["k_norm"], self.eps).transpose(1, 2), cos, sin)
        if step:
            rows = torch.arange(batch, device=y.device)
            memory.keys[i][rows, :, memory.lengths] = k[:, :, 0]
            memory.values[i][rows, :, memory.lengths] = v[:, :, 0]
            n = memory.filled
            seen = (torch.arange(n, device=y.device)[None] <= memory.lengths[:, None])[:, None, None]
            q = q.reshape(batch, self.kv_heads, -1, self.head)   # the query heads of one key head, as if they were positions
            o = F.scaled_dot_product_attention(q, memory.keys[i][:, :, :n], memory.values[i][:, :, :n], attn_mask=seen)
            o = o.reshape(batch, self.heads, 1, self.head)
        else:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            if memory is not None:
                memory.keys[i][:, :, :length] = k
                memory.values[i][:, :, :length] = v
        o = o.transpose(1, 2).reshape(batch, length, -1) * torch.sigmoid(gate.reshape(batch, length, -1))
        return F.linear(o, w["o"])

    def _remember(self, y, w, real, lengths, i, memory, step):
        batch, length, _ = y.shape
        u, past = F.linear(y, w["qkv"]), self.kernel - 1
        before = memory.windows[i] if step else u.new_zeros(batch, past, u.shape[-1])
        window = torch.cat([before, u], 1)
        mixed = F.silu(sum(window[:, j : j + length].float() * w["conv"][:, j] for j in range(self.kernel)))
        q, k, v = mixed.split([self.n_k * self.d_k, self.n_k * self.d_k, self.n_v * self.d_v], -1)
        q = l2(q.view(batch, length, self.n_k, self.d_k), self.eps)[:, :, self.key_head].transpose(1, 2) * self.d_k**-0.5
        k = l2(k.view(batch, length, self.n_k, self.d_k), self.eps)[:, :, self.key_head].transpose(1, 2)
        v = v.reshape(batch, length, self.n_v, self.d_v).transpose(1, 2)
        beta = F.linear(y, w["b"]).float().sigmoid().transpose(1, 2)
        g = (w["decay"] * F.softplus(F.linear(y, w["a"]).float() + w["dt"])).transpose(1, 2)
        if step:
            memory.windows[i].copy_(window[:, 1:])
            state = memory.states[i].mul_(g.exp()[..., None])
            wrong = v - k @ state
            state += (beta[..., None] * k).mT @ wrong
            o = q @ state
        else:
            o, state = delta_rule(q, k, v, beta * real[:, None], g * real[:, None])
            if memory is not None:
                memory.states[i].copy_(state)
                last = (lengths[:, None] + torch.arange(past, device=y.device))[..., None].expand(-1, -1, u.shape[-1])
                memory.windows[i].copy_(window.gather(1, last))
        z = F.linear(y, w["z"]).view(batch, length, self.n_v, self.d_v)
        o = rms(o.transpose(1, 2), w["gate_norm"], self.eps) * F.silu(z.float())
        return F.linear(o.to(y.dtype).reshape(batch, length, -1), w["o"])

    def _experts(self, y, w):
        rows = y.reshape(-1, y.shape[-1])
        weight, chosen = F.linear(rows.float(), w["router"]).softmax(-1).topk(self.top, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.zeros(w["router"].shape[0], device=y.device).scatter_add_(0, chosen.flatten(), torch.ones(chosen.numel(), device=y.device))
        ends = counts.cumsum(0).to(torch.int32)
        gate, up = grouped(rows[order // self.top], w["gate_up"], ends).chunk(2, -1)
        done = grouped(F.silu(gate) * up, w["down"], ends)
        routed = torch.empty_like(done).index_copy_(0, order, done).view(-1, self.top, rows.shape[-1])
        routed = (routed.float() * weight[..., None]).sum(1)
        shared = F.linear(F.silu(F.linear(rows, w["shared_gate"])) * F.linear(rows, w["shared_up"]), w["shared_down"])
        share = F.linear(rows.float(), w["shared_share"]).sigmoid()
        return (routed + share * shared.float()).to(y.dtype).view_as(y)

    @torch.no_grad()
    def go_on(self, prefixes, temperatures, n_new, ends, unused, generator):
        """Continues prefixes of similar length by at most n_new tokens; an end token is the last one of its continuation."""
        n, longest = len(prefixes), max(map(len, prefixes))
        memory = self.memory(n, longest + n_new)
        ids = torch.zeros(n, longest, dtype=torch.long)
        for row, prefix in zip(ids, prefixes):
            row[: len(prefix)] = torch.tensor(prefix)
        ids, lengths = ids.to(self.device), torch.tensor([len(prefix) for prefix in prefixes], device=self.device)
        hidden = torch.empty(n, self.hidden, dtype=self.dtype, device=self.device)
        at_once = max(1, tokens_per_pass(self) // longest)
        for i in range(0, n, at_once):
            rows = slice(i, min(n, i + at_once))
            states = self.read(ids[rows], lengths[rows], memory=memory.part(rows.start, rows.stop))[1]
            hidden[rows] = states[torch.arange(len(states)), lengths[rows] - 1]
        memory.filled = longest
        who, hot = torch.arange(n), torch.tensor(temperatures, device=self.device)[:, None]
        ends, unused = torch.tensor(ends, device=self.device), torch.tensor(unused, dtype=torch.long, device=self.device)
        said = torch.zeros(n, n_new, dtype=torch.long, device=self.device)
        n_said = torch.zeros(n, dtype=torch.long, device=self.device)
        done, out = torch.zeros(n, dtype=torch.bool, device=self.device), [[] for _ in prefixes]
        for i in range(n_new):
            token = choose(self.logits(hidden).index_fill(-1, unused, -math.inf), hot, generator)
            said[:, i] = token
            n_said += ~done
            done |= torch.isin(token, ends)
            if i % 8 == 7 or i == n_new - 1:
                finished = done.cpu() if i < n_new - 1 else torch.ones(len(who), dtype=torch.bool)
                counts, words = n_said.tolist(), said.cpu()
                for row in finished.nonzero()[:, 0].tolist():
                    out[who[row]] = words[row, : counts[row]].tolist()
                if finished.all():
                    break
                if finished.any():
                    rows = (~finished).nonzero()[:, 0]
                    who, rows = who[rows], rows.to(self.device)
                    memory, token, hot, said, n_said, done = memory.keep(rows), token[rows], hot[rows], said[rows], n_said[rows], done[rows]
            hidden = self.step(token, memory)
        return out


def choose(logits, temperatures, generator):
    """One token a row: the likeliest at temperature 0, else drawn."""
    drawn = torch.multinomial((logits / temperatures.clamp(min=0.05)).softmax(-1), 1, generator=generator)[:, 0]
    return torch.where(temperatures[:, 0] > 0, drawn, logits.argmax(-1))


class HuggingFace:
    """Any causal language model that transformers loads, with the methods of `Qwen35Moe` that the rest uses."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype):
        try:
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise Refused(f"{folder} is a folder, which needs the package transformers: install it, or give a GGUF file") from error
        try:
            self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval().requires_grad_(False)
        except (OSError, ValueError, KeyError) as error:
            raise Refused(f"{folder} is no model that transformers can load ({error})") from error
        config = self.model.config.get_text_config()
        self.device, self.dtype = device, dtype
        self.n_layers, self.hidden, self.eps = config.num_hidden_layers, config.hidden_size, config.rms_norm_eps
        self.heads, self.kv_heads, self.context = config.num_attention_heads, config.num_key_value_heads, config.max_position_embeddings
        self.head = getattr(config, "head_dim", None) or self.hidden // self.heads
        rope = getattr(config, "rope_parameters", None) or {}
        self.theta = rope.get("rope_theta") or getattr(config, "rope_theta", 10000.0)
        self.embed, self.out = self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight
        self.vocabulary = self.embed.shape[0]

    def row_bytes(self, capacity: int) -> int:
        return 8 * self.n_layers * self.kv_heads * self.head * capacity + 16 * self.vocabulary

    def logits(self, hidden):
        return F.linear(hidden.to(self.out.dtype), self.out).float()

    @torch.no_grad()
    def read(self, ids, lengths, taps=()):
        real = torch.arange(ids.shape[1], device=self.device)[None] < lengths[:, None]
        states = self.model(input_ids=ids, attention_mask=real.long(), output_hidden_states=True, logits_to_keep=1, use_cache=False).hidden_states
        return torch.cat([states[i + 1] for i in taps], -1) if taps else None, states[-1]

    @torch.no_grad()
    def go_on(self, prefixes, temperatures, n_new, ends, unused, generator):
        out: list[list[int]] = [[] for _ in prefixes]
        for temperature in sorted(set(temperatures)):
            rows = [i for i, t in enumerate(temperatures) if t == temperature]
            longest = max(len(prefixes[i]) for i in rows)
            ids = torch.tensor([[ends[0]] * (longest - len(prefixes[i])) + prefixes[i] for i in rows], device=self.device)
            real = torch.tensor([[0] * (longest - len(prefixes[i])) + [1] * len(prefixes[i]) for i in rows], device=self.device)
            how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {"do_sample": False}
            said = self.model.generate(input_ids=ids, attention_mask=real, max_new_tokens=n_new, eos_token_id=ends or None, pad_token_id=(ends or [0])[0],
                                       suppress_tokens=unused or None, **how)[:, longest:].tolist()
            for i, tokens in zip(rows, said):
                stop = next((j + 1 for j, token in enumerate(tokens) if token in ends), len(tokens))
                out[i] = tokens[:stop]
        return out


def go_on(target, prefixes, temperatures, n_new, vocabulary, seed, what, ends=None) -> list[list[int]]:
    """Continuations of any number of prefixes, batch by batch, those of similar length together."""
    ends = vocabulary.ends if ends is None else ends
    generator = torch.Generator(device=target.device).manual_seed(seed)
    order = sorted(range(len(prefixes)), key=lambda i: len(prefixes[i]))
    capacity = max(map(len, prefixes), default=1) + n_new
    on_gpu = target.device.type == "cuda"
    room = 0.4 * torch.cuda.mem_get_info(target.device)[0] if on_gpu else 2**31
    rows = max(1, min(16384 if on_gpu else 256, int(room / target.row_bytes(capacity))))
    out: list[list[int]] = [[] for _ in prefixes]
    begun = said = time.monotonic()
    for i in range(0, len(order), rows):
        batch = order[i : i + rows]
        done = target.go_on([prefixes[j] for j in batch], [temperatures[j] for j in batch], n_new, ends, vocabulary.unused, generator)
        for j, tokens in zip(batch, done):
            out[j] = tokens
        if time.monotonic() - said > 10 and i + rows < len(order):
            said = time.monotonic()
            say(f"{what}: {i + rows} of {len(order)}")
    say(f"{what}: {len(order)} with {sum(map(len, out))} tokens in {time.monotonic() - begun:.1f} s")
    return out


# ------------------------------------------------------------------------------------------------ the drafter


@dataclass
class Shape:
    """Sizes of a drafter; what a GGUF file says of it."""

    hidden: int
    vocabulary: int
    taps: tuple[int, ...]              # target layers, from 0, whose outputs are read
    mask: int                          # token that stands for "not yet known"
    layers: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    block: int                         # tokens drafted at once
    rank: int                          # of the table that joins one drafted token to the next
    theta: float
    eps: float
    context: int


def default_taps(n_layers: int) -> tuple[int, ...]:
    """Five layers, evenly from the second to the last but two; fewer where there aren't so many."""
    first, last = 1, max(1, n_layers - 3)
    return tuple(sorted({round(first + i * (last - first) / 4) for i in range(5)}))


class Layer(nn.Module):
    """Attention of a block's slots to the context and to each other, then a gated feed-forward network."""

    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        linear = lambda n_in, n_out: nn.Linear(n_in, n_out, bias=False)
        self.attn_norm, self.ffn_norm = nn.RMSNorm(s.hidden, s.eps), nn.RMSNorm(s.hidden, s.eps)
        self.attn_q, self.attn_output = linear(s.hidden, s.heads * s.head), linear(s.heads * s.head, s.hidden)
        self.attn_k, self.attn_v = linear(s.hidden, s.kv_heads * s.head), linear(s.hidden, s.kv_heads * s.head)
        self.attn_q_norm, self.attn_k_norm = nn.RMSNorm(s.head, s.eps), nn.RMSNorm(s.head, s.eps)
        self.ffn_gate, self.ffn_up, self.ffn_down = linear(s.hidden, s.ffn), linear(s.hidden, s.ffn), linear(s.ffn, s.hidden)

    def _heads(self, x, n):
        return x.view(*x.shape[:2], n, self.s.head)

    def keys_values(self, x, turn):
        """x [B, n, H] -> keys and values [B, n_kv, n, d]. Context comes in without `attn_norm`."""
        k = self.attn_k_norm(self._heads(self.attn_k(x), self.s.kv_heads)).transpose(1, 2)
        return rotate(k, *turn), self._heads(self.attn_v(x), self.s.kv_heads).transpose(1, 2)

    def forward(self, h, turn, context, seen):
        """h [B, Q, H]; context: keys and values [B, n_kv, S, d]; seen [B, 1, Q, S + Q]."""
        x = self.attn_norm(h)
        q = rotate(self.attn_q_norm(self._heads(self.attn_q(x), self.s.heads)).transpose(1, 2), *turn)
        own = self.keys_values(x, turn)
        k, v = (torch.cat(pair, 2).repeat_interleave(self.s.heads // self.s.kv_heads, 1) for pair in zip(context, own))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        h = h + self.attn_output(o.transpose(1, 2).flatten(2))
        x = self.ffn_norm(h)
        return h + self.ffn_down(F.silu(self.ffn_gate(x)) * self.ffn_up(x))


class Drafter(nn.Module):
    """Guesses a block of tokens: one parallel pass, then a chain of small corrections, token by token."""

    def __init__(self, s: Shape, target):
        super().__init__()
        self.s = s
        self.embed, self.out = target.embed.detach(), target.out.detach()   # the target's, shared and frozen
        self.fc = nn.Linear(len(s.taps) * s.hidden, s.hidden, bias=False)
        self.enc_norm, self.output_norm = nn.RMSNorm(s.hidden, s.eps), nn.RMSNorm(s.hidden, s.eps)
        self.blk = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.markov_w1 = nn.Embedding(s.vocabulary, s.rank)
        self.markov_w2 = nn.Linear(s.rank, s.vocabulary, bias=False)
        self.conf_proj = nn.Linear(s.hidden + s.rank, 1)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(self.conf_proj.bias)

    def _turn(self, position):
        """position [B, n] -> cosines and sines [B, 1, n, d / 2]"""
        power = torch.arange(0, self.s.head, 2, device=position.device, dtype=torch.float32) / self.s.head
        angle = position[:, None, :, None].float() * self.s.theta**-power
        return angle.cos(), angle.sin()

    def context(self, features):
        """features [B, S, T*H] of positions 0.. -> keys and values of every layer"""
        x = self.enc_norm(self.fc(features.float()))
        turn = self._turn(torch.arange(x.shape[1], device=x.device)[None])
        return [layer.keys_values(x, turn) for layer in self.blk]

    def slots(self, ids, position, context, seen):
        """ids, position [B, Q] -> normed hidden states [B, Q, H]"""
        h, turn = F.embedding(ids, self.embed).float(), self._turn(position)
        for layer, keys_values in zip(self.blk, context):
            h = layer(h, turn, keys_values, seen)
        return self.output_norm(h)

    def guess(self, hidden, previous):
        """hidden [R, H] and the token before each slot [R] -> logits [R, V] and the logit of being right [R]"""
        e = self.markov_w1(previous)
        base = F.linear(hidden, self.out.float())
        return base + self.markov_w2(e), self.conf_proj(torch.cat([hidden, e], -1))[:, 0]

    def blocks(self, anchors):
        """anchors [...] -> positions and tokens [..., g] of their blocks, the first token of which the caller fills in"""
        position = anchors[..., None] + torch.arange(self.s.block, device=anchors.device)
        return position, torch.full_like(position, self.s.mask)


# The names of a drafter's parts in a GGUF file, where they differ from those above.
_GGUF_NAMES = {"enc_norm.weight": "enc.output_norm.weight"}


def write_drafter(path: Path, drafter: Drafter, file: GgufFile, temperatures: list[float]) -> None:
    """A GGUF file with the drafter, and with the target's tokenizer, so that a reader can tell whose drafter it is."""
    s, kinds = drafter.s, gguf.GGMLQuantizationType
    n_weights = sum(p.numel() for p in drafter.parameters())

    def write(temporary: Path) -> None:
        w = gguf.GGUFWriter(temporary, "dflash")
        w.add_type("model")
        w.add_name(f"{file.get('general.name', file.path.stem)} DSpark")
        w.add_size_label(gguf.size_label(n_weights, 0, 0, 0))
        w.add_block_count(s.layers)
        w.add_context_length(s.context)
        w.add_embedding_length(s.hidden)
        w.add_feed_forward_length(s.ffn)
        w.add_head_count(s.heads)
        w.add_head_count_kv(s.kv_heads)
        w.add_rope_freq_base(s.theta)
        w.add_layer_norm_rms_eps(s.eps)
        w.add_key_length(s.head)
        w.add_value_length(s.head)
        w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
        w.add_uint32("dflash.block_size", s.block)
        w.add_array("dflash.target_layers", [i + 1 for i in s.taps])
        w.add_array("dflash.rope.dimension_sections", [s.head // 2, 0, 0, 0])
        w.add_bool("dflash.sample_from_anchor", True)
        w.add_bool("dflash.has_confidence_head", True)
        w.add_array("dflash.confidence_temperature", [float(t) for t in temperatures])
        w.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for key, field in file.fields.items():
            if key.startswith("tokenizer.") and key != "tokenizer.ggml.mask_token_id":
                sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                w.add_key_value(key, field.contents(), field.types[0], sub_type)
        w.add_mask_token_id(s.mask)
        for name, values in drafter.state_dict().items():
            values = values.detach().float().cpu().numpy()
            kind = kinds.F32 if values.ndim == 1 else kinds.BF16
            w.add_tensor(_GGUF_NAMES.get(name, name), gguf.quants.quantize(values, kind), raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    write_atomically(path, write)


def read_drafter(path: Path, target) -> tuple[Drafter, list[float]]:
    """A drafter and its confidence temperatures, from a GGUF file."""
    file = GgufFile(path)
    if file.get("general.architecture") != "dflash" or "markov_w1.weight" not in file.tensors:
        raise Refused(f"{path} has architecture {file.get('general.architecture')}; a DSpark drafter has dflash and a tensor markov_w1.weight")
    get = lambda name: file.need(f"dflash.{name}")
    vocabulary, rank = file.values("markov_w1.weight").shape
    taps = tuple(i - 1 for i in get("target_layers"))
    s = Shape(get("embedding_length"), vocabulary, taps, file.need("tokenizer.ggml.mask_token_id"), get("block_count"), get("attention.head_count"),
              get("attention.head_count_kv"), get("attention.key_length"), get("feed_forward_length"), get("block_size"), rank,
              get("rope.freq_base"), get("attention.layer_norm_rms_epsilon"), get("context_length"))
    if (s.hidden, s.vocabulary) != (target.hidden, target.vocabulary) or max(taps) >= target.n_layers - 1:
        raise Refused(f"{path} is for a target of hidden size {s.hidden}, {s.vocabulary} tokens and over {max(taps) + 1} layers; "
                      f"this one has {target.hidden}, {target.vocabulary} and {target.n_layers}")
    drafter = Drafter(s, target)
    names = {name: _GGUF_NAMES.get(name, name) for name in drafter.state_dict()}
    drafter.load_state_dict({name: torch.from_numpy(file.values(tensor)) for name, tensor in names.items()})
    return drafter.to(target.device), file.get("dflash.confidence_temperature") or [1.0] * s.block


# ------------------------------------------------------------------------------------------------ what it learns from


@dataclass
class Sample:
    """A text, of which the target wrote all from token `own` on."""

    ids: list[int]
    own: int
    kind: str


@dataclass
class Prompt:
    """Turns of a conversation as (role, text); the last is a user's."""

    turns: list[tuple[str, str]]
    kind: str = "own"


def render(turns: list[tuple[str, str]]) -> str:
    return "".join(f"<|im_start|>{role}\n{text.strip()}<|im_end|>\n" for role, text in turns)


def opened(turns: list[tuple[str, str]], thinking: bool, vocabulary: Vocabulary) -> list[int]:
    """The tokens of a conversation up to where the target's answer begins."""
    thought = "" if "<think>" not in vocabulary.ids else "<think>\n" if thinking else "<think>\n\n</think>\n\n"
    return vocabulary.encode(f"{render(turns)}<|im_start|>assistant\n{thought}")


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a text file (one a line) or of a .jsonl file (a string, {"prompt": ...} or {"messages": [...]}, and "kind" if wished)."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"prompts can't be read from {path} ({error}); give a UTF-8 text file with a prompt a line, or .jsonl") from error
    prompts = []
    for i, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line) if path.suffix == ".jsonl" else line
            entry = {"prompt": entry} if isinstance(entry, str) else entry
            turns = [("user", entry["prompt"])] if "prompt" in entry else [(m["role"], m["content"]) for m in entry["messages"]]
            if turns[-1][0] != "user" or not all(isinstance(text, str) for _, text in turns):
                raise ValueError("the last turn isn't a user's text")
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise Refused(f'line {i} of {path} is no prompt ({error}); it must be a string, {{"prompt": "..."}} or {{"messages": [{{"role": "user", "content": "..."}}]}}') from error
        prompts.append(Prompt(turns, str(entry.get("kind", "prompt"))))
    if not prompts:
        raise Refused(f"{path} has no prompts; give one a line")
    return prompts


def write_questions(target, vocabulary, histories, seed, n_new) -> list[str | None]:
    """What the target itself asks after each history; None where that is no question."""
    ends = [vocabulary.ids["<|im_end|>"]]
    prefixes = [vocabulary.encode(render(turns) + "<|im_start|>user\n") for turns in histories]
    said = go_on(target, prefixes, [1.0] * len(prefixes), n_new, vocabulary, seed, "questions", sorted(set(ends + vocabulary.ends)))
    texts = [vocabulary.decode(tokens[:-1]).strip() if tokens and tokens[-1] in ends else "" for tokens in said]
    return [text if text and not re.search(r"<\|\w+\|>|</?think>|\ufffd", text) else None for text in texts]


def answer(target, vocabulary, prompts, args, seed, what, greedy=False) -> list[Sample]:
    """The target's answers; every second one greedy, or all; with thinking as the arguments say."""
    prefixes, kinds = [], []
    for i, prompt in enumerate(prompts):
        thinking = args.thinking == "on" or (args.thinking == "mixed" and not greedy and i % 4 >= 2)
        ids = opened(prompt.turns, thinking, vocabulary)
        if len(ids) + 8 <= args.length:
            prefixes.append(ids)
            kinds.append(prompt.kind)
    temperatures = [0.0 if greedy or i % 2 else args.temperature for i in range(len(prefixes))]
    said = go_on(target, prefixes, temperatures, args.new, vocabulary, seed, what)
    return [Sample((prefix + tokens)[: args.length], len(prefix), kind) for prefix, tokens, kind in zip(prefixes, said, kinds)]


def converse(target, vocabulary, args, forbidden: set[str]) -> tuple[list[Sample], list[Prompt]]:
    """Answers to the prompts given, and conversations that the target has with itself; and prompts kept for measuring."""
    rng = random.Random(args.seed)
    prompts = read_prompts(args.prompts) if args.prompts else []
    if args.write:
        asked = write_questions(target, vocabulary, [[]] * args.write, args.seed + 1, args.question)
        texts = [text for text in asked if text]
        say(f"{len(texts)} of {args.write} questions are usable, {len(set(texts))} differ")
        if not texts and not prompts:
            raise Refused("the target writes no questions of its own (is it a chat model?); give --prompts FILE")
        prompts += [Prompt([("user", text)]) for text in texts]
    # What is asked often is learned often, but what is measured with is never learned.
    prompts = [prompt for prompt in prompts if prompt.turns[-1][1].strip() not in forbidden]
    rng.shuffle(prompts)
    distinct = list({prompt.turns[-1][1].strip(): prompt for prompt in prompts}.values())
    n_kept = min(args.calibrate, len(distinct) // 5) + (0 if args.held_out else min(240, len(distinct) // 10))
    kept = distinct[:n_kept]
    forbidden = forbidden | {prompt.turns[-1][1].strip() for prompt in kept}
    prompts = [prompt for prompt in prompts if prompt.turns[-1][1].strip() not in forbidden]
    if not prompts:
        raise Refused("no prompts are left to learn from after some were kept for measuring; give at least ten")
    samples = answer(target, vocabulary, prompts, args, args.seed + 2, "answers")
    for turn in range(2, args.turns + 1):
        # Every second conversation goes on, without its earlier thoughts, as chat templates render it.
        histories = []
        for prompt, sample in zip(prompts, samples[-len(prompts) :]):
            text = vocabulary.decode([i for i in sample.ids[sample.own :] if i not in vocabulary.ends]).split("</think>")[-1].strip()
            if text and sample.ids[-1] in vocabulary.ends:
                histories.append(prompt.turns + [("assistant", text)])
        histories = histories[::2]
        asked = write_questions(target, vocabulary, histories, args.seed + 2 * turn + 1, args.question) if histories else []
        prompts = [Prompt(turns + [("user", text)]) for turns, text in zip(histories, asked) if text and text not in forbidden]
        if not prompts:
            break
        samples += answer(target, vocabulary, prompts, args, args.seed + 2 * turn + 2, f"answers of turn {turn}")
    return samples, kept


def go_on_text(target, vocabulary, path: Path, args) -> tuple[list[Sample], list[Sample]]:
    """Continuations of a text's pieces: to learn from, and, of its last tenth, greedy ones to measure with."""
    try:
        ids = vocabulary.encode(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"--text can't be read from {path} ({error}); give a UTF-8 text file") from error
    head = 96
    pieces = [ids[i : i + head] for i in range(0, len(ids) - head, head)]
    if len(pieces) < 20:
        raise Refused(f"{path} has {len(ids)} tokens; --text needs at least {21 * head}")
    cut = len(pieces) * 9 // 10
    learn, held = [] if args.evaluate else pieces[:cut][: args.write or 16384], pieces[cut:][:40]
    said = go_on(target, learn, [0.0 if i % 2 else args.temperature for i in range(len(learn))], 160, vocabulary, args.seed + 90, "continuations", [])
    measured = go_on(target, held, [0.0] * len(held), 128, vocabulary, args.seed + 91, "continuations to measure with", [])
    whole = lambda prefixes, tokens: [Sample(a + b, head, "text") for a, b in zip(prefixes, tokens)]
    return whole(learn, said), whole(held, measured)


class Features:
    """What the drafter sees of every sample: tapped layers and last hidden states of the target.

    They are computed once and kept, on the GPU or in memory, where they fit into half of what is free; else for every batch.
    """

    def __init__(self, target, samples: list[Sample], taps: tuple[int, ...]):
        self.target, self.samples, self.taps = target, samples, taps
        n_tokens = sum(len(sample.ids) for sample in samples)
        need = n_tokens * (len(taps) + 1) * target.hidden * target.embed.element_size()
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        places = [(torch.device("cpu"), free)]
        if target.device.type == "cuda":
            places.insert(0, (target.device, torch.cuda.mem_get_info(target.device)[0]))
        self.place = next((place for place, room in places if need < room / 2), None)
        say(f"{len(samples)} samples, {n_tokens} tokens, features of {need / 2**20:.0f} MiB {f'kept on {self.place}' if self.place else 'computed for every batch'}")
        self.first = np.cumsum([0] + [len(sample.ids) for sample in samples])
        if self.place:
            self._keep(n_tokens)

    def _keep(self, n_tokens: int) -> None:
        new = lambda width: torch.empty(n_tokens, width, dtype=self.target.dtype, device=self.place)
        self.tapped, self.last = new(len(self.taps) * self.target.hidden), new(self.target.hidden)
        order = sorted(range(len(self.samples)), key=lambda i: len(self.samples[i].ids))
        while order:
            longest = len(self.samples[order[-1]].ids)
            n = max(1, tokens_per_pass(self.target) // longest)
            batch, order = order[-n:], order[:-n]
            ids, _, lengths = self._ids(batch)
            tapped, last = self.target.read(ids, lengths, self.taps)
            real = torch.arange(ids.shape[1], device=ids.device)[None] < lengths[:, None]
            at = torch.cat([torch.arange(self.first[i], self.first[i + 1]) for i in batch]).to(self.place)
            self.tapped[at], self.last[at] = tapped[real].to(self.place), last[real].to(self.place)

    def _ids(self, batch):
        longest = max(len(self.samples[i].ids) for i in batch)
        ids, own = np.zeros((len(batch), longest), np.int64), np.zeros((len(batch), longest), bool)
        for row, i in enumerate(batch):
            n = len(self.samples[i].ids)
            ids[row, :n], own[row, self.samples[i].own : n] = self.samples[i].ids, True
        lengths = torch.tensor([len(self.samples[i].ids) for i in batch], device=self.target.device)
        return torch.from_numpy(ids).to(self.target.device), torch.from_numpy(own).to(self.target.device), lengths

    def batch(self, batch):
        """-> ids, own (whether the target wrote them) [B, S], tapped [B, S, T*H], last [B, S, H]"""
        ids, own, lengths = self._ids(batch)
        if self.place is None:
            return ids, own, *self.target.read(ids, lengths, self.taps)
        at = torch.from_numpy(self.first[batch])[:, None] + torch.arange(ids.shape[1])
        at = at.clamp(max=len(self.last) - 1).to(self.place)
        return ids, own, self.tapped[at].to(self.target.device), self.last[at].to(self.target.device)

    def epoch(self, rng: np.random.Generator, rows: int):
        """Batches of all samples, those of about one length together, in any order."""
        length = np.diff(self.first) + rng.uniform(0, 16, len(self.samples))
        order = np.argsort(length)
        cuts = [order[i : i + rows].tolist() for i in range(0, len(order), rows)]
        rng.shuffle(cuts)
        yield from cuts


# ------------------------------------------------------------------------------------------------ training


def losses(drafter: Drafter, target, hidden, previous, labels, last):
    """Of each slot [R]: cross entropy, L1 distance to the target's distribution, the logit of being right, and the chance of it."""
    logits, z = drafter.guess(hidden, previous)
    log_q = logits.log_softmax(-1)
    with torch.no_grad():
        p = target.logits(last).softmax(-1)
    distance = (log_q.exp() - p).abs().sum(-1)
    return F.nll_loss(log_q, labels, reduction="none"), distance, z


def loss_of(drafter: Drafter, target, ids, own, tapped, last, n_anchors: int, generator):
    """Loss over random blocks of a batch, and how many tokens a verification would give (at temperature 1).

    Per slot 0.1 cross entropy + 0.9 L1 + 1.0 binary cross entropy of the confidence, weighted by exp(-slot / 4).
    """
    s, (batch, length), device = drafter.s, ids.shape, ids.device
    fits = own[:, :-1] & own[:, 1:]                       # the anchor and the first guessed token are the target's own
    score = torch.rand(fits.shape, device=device, generator=generator).masked_fill(~fits, 2.0)
    score, anchors = score.topk(min(n_anchors, length - 1), largest=False)
    n = anchors.shape[1]
    position, block = drafter.blocks(anchors)             # [B, N, g]
    block[..., 0] = ids.gather(1, anchors)
    of = torch.arange(n * s.block, device=device) // s.block
    before = torch.arange(length, device=device)[None, None] < anchors.repeat_interleave(s.block, 1)[..., None]
    seen = torch.cat([before, (of[:, None] == of[None]).expand(batch, -1, -1)], -1)[:, None]
    hidden = drafter.slots(block.flatten(1), position.flatten(1), drafter.context(tapped), seen)
    label_at = position + 1
    safe = label_at.clamp(max=length - 1).flatten(1)
    valid = (label_at < length) & (score < 1.5)[..., None] & own.gather(1, safe).view_as(label_at)
    valid = valid.int().cumprod(-1).bool()                # of a block, the slots up to the first without a label
    labels = ids.gather(1, safe).view_as(label_at)
    previous = torch.cat([block[..., :1], labels[..., :-1]], -1)
    rows = valid.flatten().nonzero()[:, 0]
    source = (torch.arange(batch, device=device)[:, None, None] * length + position.clamp(max=length - 1)).flatten()[rows]
    inputs = hidden.flatten(0, 1)[rows], previous.flatten()[rows], labels.flatten()[rows], last.flatten(0, 1)[source]
    at_once = max(64, 2**28 // s.vocabulary)              # rows of logits that are in memory together
    if len(rows) <= at_once:
        nll, distance, z = losses(drafter, target, *inputs)
    else:
        parts = [checkpoint(losses, drafter, target, *part, use_reentrant=False) for part in zip(*(x.split(at_once) for x in inputs))]
        nll, distance, z = (torch.cat(part) for part in zip(*parts))
    right = (1 - 0.5 * distance).detach().clamp(0, 1)
    slot = torch.arange(s.block, device=device).expand_as(valid).flatten()[rows]
    weight = torch.exp(-slot / 4.0)
    weight = weight / weight.sum().clamp(min=1e-6)
    confidence = F.binary_cross_entropy_with_logits(z, right, reduction="none")
    loss = ((0.1 * nll + 0.9 * distance + confidence) * weight).sum()
    chain = torch.zeros(valid.numel(), device=device).index_copy(0, rows, right).view_as(valid).cumprod(-1)
    return loss, 1 + chain.sum() / valid[..., 0].sum().clamp(min=1)


def train(drafter: Drafter, target, features: Features, args, state: "State") -> tuple[int, float]:
    """Trains for --seconds or --steps. -> steps done, and tokens a verification over the last two hundred"""
    decayed = [p for p in drafter.parameters() if p.ndim > 1]
    plain = [p for p in drafter.parameters() if p.ndim <= 1]
    optimiser = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.02}, {"params": plain, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95), fused=target.device.type == "cuda")
    step, elapsed = state.restore(drafter, optimiser)
    rng = np.random.default_rng(args.seed + step)
    generator = torch.Generator(device=target.device).manual_seed(args.seed + step)
    rows = max(1, args.blocks // args.anchors)
    begun, said, saved, taus = time.monotonic() - elapsed, time.monotonic(), time.monotonic(), []
    while True:
        for batch in features.epoch(rng, rows):
            now = time.monotonic()
            done = step / args.steps if args.steps else (now - begun) / args.seconds
            if done >= 1:
                return step, torch.stack(taus[-200:]).mean().item() if taus else float("nan")
            if now - saved > args.checkpoint:
                saved = now
                state.save(drafter, optimiser, step, now - begun)
            rate = args.lr * min(1, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * max(0.0, done - 0.1) / 0.9))
            for group in optimiser.param_groups:
                group["lr"] = rate
            loss, tau = loss_of(drafter, target, *features.batch(batch), args.anchors, generator)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            optimiser.step()
            step += 1
            taus.append(tau.detach())
            if step == 1 or now - said > 10:
                said = now
                say(f"step {step}, {done:.0%}: loss {loss.item():.3f}, {torch.stack(taus[-200:]).mean().item():.2f} tokens a verification")


class State:
    """The checkpoint of a run: what the target wrote, and how far the training is."""

    def __init__(self, path: Path, settings: dict):
        self.path, self.settings, self.held = path, settings, None
        if path.is_file():
            try:
                self.held = torch.load(path, map_location="cpu", weights_only=True)
            except Exception as error:
                raise Refused(f"{path} is no checkpoint of this script ({error}); remove it to begin anew") from error
            other = {name for name in settings if self.held["settings"].get(name) != settings[name]}
            if other:
                was = ", ".join(f"{name} was {self.held['settings'].get(name)} and is {settings[name]}" for name in sorted(other))
                raise Refused(f"{path} is of a run with other settings ({was}); give the same ones to go on, or remove it to begin anew")
            say(f"going on from {path}")

    def data(self) -> dict[str, list[Sample]] | None:
        if self.held is None:
            return None
        data = {}
        for name, (ids, lengths, own, kinds) in self.held["data"].items():
            data[name] = [Sample(part.tolist(), *rest) for part, *rest in zip(ids.split(lengths), own, kinds)]
        return data

    def begin(self, data: dict[str, list[Sample]]) -> None:
        packed = {}
        for name, samples in data.items():
            ids = torch.tensor([i for sample in samples for i in sample.ids], dtype=torch.int32)
            packed[name] = ids, [len(sample.ids) for sample in samples], [sample.own for sample in samples], [sample.kind for sample in samples]
        self.held = {"settings": self.settings, "data": packed}
        self._write()

    def save(self, drafter, optimiser, step: int, elapsed: float) -> None:
        self.held |= {"drafter": drafter.state_dict(), "optimiser": optimiser.state_dict(), "step": step, "elapsed": elapsed}
        self._write()

    def restore(self, drafter, optimiser) -> tuple[int, float]:
        if "step" not in self.held:
            return 0, 0.0
        drafter.load_state_dict(self.held["drafter"])
        optimiser.load_state_dict(self.held["optimiser"])
        return self.held["step"], self.held["elapsed"]

    def _write(self) -> None:
        write_atomically(self.path, lambda temporary: torch.save(self.held, temporary))


# ------------------------------------------------------------------------------------------------ measuring


@dataclass
class Visits:
    """Blocks that greedy decoding with the drafter goes through: logits of confidence, right guesses before the first
    wrong one, and slots before the end of the answer."""

    z: np.ndarray                      # [N, g]
    right: np.ndarray                  # [N]
    slots: np.ndarray                  # [N]


@torch.no_grad()
def draft_and_verify(drafter: Drafter, target, samples: list[Sample]) -> tuple[dict, Visits]:
    """Greedy decoding with the drafter along the target's greedy answers, which it can't change, so they are known.

    Blocks that the end of an answer cuts off count for the slots they reach, but not in `accepted_per_block`.
    """
    g, device = drafter.s.block, target.device
    tried, good, kinds = np.zeros(g), np.zeros(g), {}
    zs, rights, slots = [], [], []
    for sample in samples:
        n_tokens = len(sample.ids)
        if n_tokens - sample.own < 3:
            continue
        ids = torch.tensor([sample.ids], device=device)
        tapped, _ = target.read(ids, torch.tensor([n_tokens], device=device), drafter.s.taps)
        anchors = torch.arange(sample.own, n_tokens - 1, device=device)      # every newest token there can be
        position, block = drafter.blocks(anchors)
        block[:, 0] = ids[0, anchors]
        before = torch.arange(n_tokens, device=device)[None] < anchors[:, None]
        seen = torch.cat([before, torch.ones(len(anchors), g, dtype=torch.bool, device=device)], -1)[:, None, None].expand(-1, 1, g, -1)
        context = [tuple(x.expand(len(anchors), -1, -1, -1) for x in pair) for pair in drafter.context(tapped)]
        hidden, guess, guesses, confidences = drafter.slots(block, position, context, seen), block[:, 0], [], []
        for k in range(g):
            logits, z = drafter.guess(hidden[:, k], guess)
            guess = logits.argmax(-1)
            guesses.append(guess)
            confidences.append(z)
        guesses, confidences = torch.stack(guesses, 1).cpu().numpy(), torch.stack(confidences, 1).cpu().numpy()
        n_blocks, n_right = kinds.setdefault(sample.kind, [0, 0])
        at = sample.own
        while at < n_tokens - 1:
            n = min(g, n_tokens - 1 - at)
            wrong = guesses[at - sample.own, :n] != np.array(sample.ids[at + 1 : at + 1 + n])
            right = int(wrong.argmax()) if wrong.any() else n
            tried[: min(right + 1, n)] += 1
            good[:right] += 1
            zs.append(confidences[at - sample.own])
            rights.append(right)
            slots.append(n)
            if n == g:
                n_blocks, n_right = n_blocks + 1, n_right + right
            at += right + 1
        kinds[sample.kind] = [n_blocks, n_right]
    visits = Visits(np.array(zs).reshape(-1, g), np.array(rights), np.array(slots))
    blocks, right = (sum(counts[i] for counts in kinds.values()) for i in (0, 1))
    conditional = (good / np.maximum(tried, 1)).round(4).tolist()
    return {
        "blocks": blocks, "accepted_per_block": right / max(blocks, 1), "tokens_per_verify": 1 + right / max(blocks, 1),
        "conditional_acceptance": conditional, "reach": tried.tolist(),
        "by_kind": {kind: {"blocks": b, "accepted_per_block": round(r / max(b, 1), 3)} for kind, (b, r) in sorted(kinds.items())},
        "mean_confidence": mean_confidence(visits, [1.0] * g), "mean_accepted": [c if n else None for c, n in zip(conditional, tried)],
    }, visits


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(z, -60, 60)))


def mean_confidence(visits: Visits, temperatures: list[float]) -> list[float | None]:
    """Of each slot, the mean confidence where it was tried: all before it were right, and the answer went on."""
    means = []
    for k, temperature in enumerate(temperatures):
        there = (visits.right >= k) & (visits.slots > k)
        means.append(round(float(sigmoid(visits.z[there, k] / temperature).mean()), 4) if there.any() else None)
    return means


def calibration_error(stated: np.ndarray, happened: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error: over bins of stated chance, how far the share that happened is from it."""
    which = np.minimum((stated * bins).astype(int), bins - 1)
    gaps = [abs((stated[which == b] - happened[which == b]).sum()) for b in range(bins)]
    return float(sum(gaps) / max(len(stated), 1))


def calibration_errors(visits: Visits, temperatures: list[float]) -> list[float | None]:
    """Of each slot, the error of the stated chance that all drafts up to it are right."""
    survival, errors = np.ones(len(visits.right)), []
    for k, temperature in enumerate(temperatures):
        survival = survival * sigmoid(visits.z[:, k] / temperature)
        there = visits.slots > k
        errors.append(round(calibration_error(survival[there], visits.right[there] > k), 4) if there.any() else None)
    return errors


def fit_temperatures(visits: Visits, least: int = 100) -> list[float]:
    """One temperature a slot, from left to right: that with which the chance stated for the whole prefix errs least.

    A slot of which fewer than `least` blocks tell keeps temperature 1.
    """
    temperatures, survival = [], np.ones(len(visits.right))
    for k in range(visits.z.shape[1] if len(visits.right) else 0):
        there, best = visits.slots > k, 1.0
        if there.sum() >= least:
            error = lambda t: calibration_error((survival * sigmoid(visits.z[:, k] / t))[there], visits.right[there] > k)
            best = min(np.geomspace(0.25, 8, 101), key=error)
        temperatures.append(round(float(best), 4))
        survival = survival * sigmoid(visits.z[:, k] / temperatures[-1])
    return temperatures


def measure(drafter, target, sets: dict[str, list[Sample]], temperatures: list[float]) -> dict:
    report = {}
    for name, samples in sets.items():
        found, visits = draft_and_verify(drafter, target, samples)
        found["calibrated_confidence"] = mean_confidence(visits, temperatures)
        found["calibration_error"] = {"stated": calibration_errors(visits, [1.0] * len(temperatures)), "calibrated": calibration_errors(visits, temperatures)}
        report[name] = found
        say(f"{name}: {found['accepted_per_block']:.3f} drafts accepted a block of {drafter.s.block}, {found['blocks']} blocks, {len(samples)} prompts; "
            f"slot by slot {found['conditional_acceptance']}")
    return report


# ------------------------------------------------------------------------------------------------ the program


def arguments(argv=None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    path, what = dict(type=Path, metavar="FILE"), p.add_argument_group
    g = what("files")
    g.add_argument("--target", type=Path, required=True, help="the model: a GGUF file (any part of a split one) or a Hugging Face folder")
    g.add_argument("--gguf", **path, help="with a Hugging Face folder: the GGUF file of the same model, for the tokenizer")
    g.add_argument("--out", required=True, **path, help="the drafter; its measurements go to FILE.eval.json, its checkpoint to FILE.state")
    g.add_argument("--evaluate", **path, help="measure this drafter instead of training one; only OUT.eval.json is written")
    g = what("what it learns from")
    g.add_argument("--prompts", **path, help="prompts: one a line, or .jsonl")
    g.add_argument("--write", type=int, metavar="N", help="questions that the target writes itself (default: 16384, with --prompts 0)")
    g.add_argument("--held-out", **path, help="prompts to measure with, like --prompts; never learned from (default: some of the others)")
    g.add_argument("--text", **path, help="text whose pieces the target continues as well")
    g.add_argument("--turns", type=int, default=2, help="questions in a conversation at most; every second one goes on")
    g.add_argument("--thinking", choices=["off", "on", "mixed"], default="off", help="whether the answers begin with thoughts")
    g.add_argument("--new", type=int, default=256, help="tokens of an answer at most")
    g.add_argument("--question", type=int, default=128, help="tokens of a question at most")
    g.add_argument("--length", type=int, default=1024, help="tokens of a conversation at most")
    g.add_argument("--temperature", type=float, default=0.8, help="of the answers that aren't greedy")
    g.add_argument("--calibrate", type=int, default=512, help="prompts kept for fitting the confidence")
    g = what("the drafter")
    g.add_argument("--layers", type=int, default=3)
    g.add_argument("--rank", type=int, help="of the table that joins drafted tokens (default: half the hidden size, 256 at most)")
    g.add_argument("--block", type=int, default=7, help="tokens drafted at once")
    g.add_argument("--taps", type=lambda s: tuple(int(x) for x in s.split(",")), metavar="I,J,...", help="target layers to read, from 0 (default: five, evenly spread)")
    g.add_argument("--heads", type=int, help="query heads (default: the target's, as --kv-heads and --head-size)")
    g.add_argument("--kv-heads", type=int)
    g.add_argument("--head-size", type=int)
    g.add_argument("--ffn", type=int, help="width of the feed-forward network (default: twice the hidden size)")
    g.add_argument("--mask-token", help="a token that the model never says (default: <|fim_pad|>)")
    g = what("the training")
    g.add_argument("--seconds", type=float, default=300, help="of training, without the writing before it")
    g.add_argument("--steps", type=int, help="steps, instead of --seconds")
    g.add_argument("--lr", type=float, help="highest learning rate (default: 0.0015 at hidden size 256, falling with its root)")
    g.add_argument("--blocks", type=int, default=2048, help="blocks a step")
    g.add_argument("--anchors", type=int, default=32, help="blocks of one conversation a step")
    g.add_argument("--checkpoint", type=float, default=120, metavar="SECONDS", help="between checkpoints")
    g.add_argument("--seed", type=int, default=7)
    g.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or cuda:N")
    return p.parse_args(argv)


def check(args) -> None:
    """Refuses arguments that can't be meant, before anything expensive."""
    if args.write is None:
        args.write = 0 if args.prompts else 16384
    least = {"layers": 1, "block": 1, "turns": 1, "new": 4, "question": 4, "length": 32, "anchors": 1, "blocks": 1, "write": 0, "calibrate": 0, "temperature": 0, "seconds": 0}
    for name, value in least.items():
        if getattr(args, name) < value:
            raise Refused(f"--{name} is {getattr(args, name)}; it must be at least {value}")
    if args.steps is not None and args.steps < 1:
        raise Refused(f"--steps is {args.steps}; it must be at least 1")
    if not (args.write or args.prompts or args.text or args.evaluate):
        raise Refused("there is nothing to learn from: give --prompts, --text, or a --write above 0")
    for name in ("target", "gguf", "prompts", "held_out", "text", "evaluate"):
        path = getattr(args, name)
        if path is not None and not path.exists():
            raise Refused(f"--{name.replace('_', '-')} {path}: no such file")
    if not args.out.parent.is_dir():
        raise Refused(f"--out {args.out}: the folder {args.out.parent} doesn't exist")
    for name in ("target", "gguf", "evaluate"):
        path = getattr(args, name)
        if path is not None and args.out.resolve() == path.resolve():
            raise Refused(f"--out {args.out} is the same file as --{name}; give a new name")
    if args.target.is_dir() and args.gguf is None:
        raise Refused(f"{args.target} is a folder: name with --gguf the GGUF file of the same model that you run, for the tokenizer")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise Refused(f"--device {args.device}: PyTorch finds no CUDA device here; use --device cpu")


def load_target(args) -> tuple[object, GgufFile, Vocabulary]:
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    file = GgufFile(args.gguf or args.target)
    if args.target.is_dir():
        target = HuggingFace(args.target, device, dtype)
    else:
        if file.get("general.architecture") != "qwen35moe":
            raise Refused(f"{args.target} has architecture {file.get('general.architecture')}; GGUF files of qwen35moe can be read, and any model as a Hugging Face folder")
        target = Qwen35Moe(file, device, dtype)
    vocabulary = Vocabulary(file)
    if not args.evaluate or not args.text:
        for token in ("<|im_start|>", "<|im_end|>"):
            if token not in vocabulary.ids:
                raise Refused(f"the vocabulary of {file.path} has no {token}; conversations in ChatML need it")
    if vocabulary.n > target.vocabulary:
        raise Refused(f"{file.path} has {vocabulary.n} tokens but {args.target} embeds {target.vocabulary}; the two must be one model")
    say(f"{args.target.name}: {target.n_layers} layers, hidden size {target.hidden}, {target.vocabulary} tokens, on {device}")
    return target, file, vocabulary


def shape(args, target, vocabulary: Vocabulary) -> Shape:
    taps = args.taps or default_taps(target.n_layers)
    if list(taps) != sorted(set(taps)) or taps[0] < 0 or taps[-1] > target.n_layers - 2:
        raise Refused(f"--taps {','.join(map(str, taps))}: they must ascend, from 0 to {target.n_layers - 2}; the last of {target.n_layers} layers can't be tapped")
    heads, kv_heads = args.heads or target.heads, args.kv_heads or target.kv_heads
    if heads % kv_heads:
        raise Refused(f"--heads {heads} isn't a multiple of --kv-heads {kv_heads}")
    return Shape(target.hidden, target.vocabulary, taps, vocabulary.mask(args.mask_token), args.layers, heads, kv_heads, args.head_size or target.head,
                 args.ffn or 2 * target.hidden, args.block, args.rank or min(256, target.hidden // 2), target.theta, target.eps, target.context)


def held_out(args, target, vocabulary, prompts: list[Prompt]) -> dict[str, list[Sample]]:
    """Greedy answers to measure with."""
    return {"chat": answer(target, vocabulary, prompts, args, args.seed + 80, "held-out answers", greedy=True)}


def collect(args, target, vocabulary) -> dict[str, list[Sample]]:
    """Everything the target has to write: `learn`, `calibrate`, and the sets to measure with."""
    given = read_prompts(args.held_out) if args.held_out else []
    data: dict[str, list[Sample]] = {"learn": []}
    if args.write or args.prompts:
        forbidden = {text.strip() for prompt in given for role, text in prompt.turns if role == "user"}
        data["learn"], kept = converse(target, vocabulary, args, forbidden)
        n_calibrate = len(kept) if given else len(kept) - min(240, len(kept) // 3)
        data["calibrate"] = answer(target, vocabulary, kept[:n_calibrate], args, args.seed + 81, "answers for the confidence", greedy=True)
        data |= held_out(args, target, vocabulary, given or kept[n_calibrate:])
    if args.text:
        learn, data["docs"] = go_on_text(target, vocabulary, args.text, args)
        data["learn"] += learn
        data.setdefault("calibrate", data["docs"])
    data["learn"] = [sample for sample in data["learn"] if len(sample.ids) - sample.own >= 3]
    if not data["learn"]:
        raise Refused("every answer of the target has fewer than three tokens: there is nothing to learn")
    return data


def run(args) -> dict:
    check(args)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    target, file, vocabulary = load_target(args)
    results = args.out.with_name(args.out.name + ".eval.json")
    if args.evaluate:
        drafter, temperatures = read_drafter(args.evaluate, target)
        sets = held_out(args, target, vocabulary, read_prompts(args.held_out)) if args.held_out else {}
        if args.text:
            sets["docs"] = go_on_text(target, vocabulary, args.text, args)[1]
        if not sets:
            raise Refused("--evaluate needs --held-out or --text to measure with")
        report = measure(drafter, target, sets, temperatures)
        write_atomically(results, lambda temporary: temporary.write_text(json.dumps(report, indent=1)))
        return report
    sizes = shape(args, target, vocabulary)
    args.lr = args.lr or 1.5e-3 * (256 / target.hidden) ** 0.5
    elsewhere = {"out", "device", "checkpoint", "evaluate", "target", "gguf", "seconds", "steps"}
    settings = {name: str(value) for name, value in sorted(vars(args).items()) if name not in elsewhere}
    with open(file.path, "rb") as head:
        settings["model"] = hashlib.sha256(head.read(2**20)).hexdigest()[:16]
    state = State(args.out.with_name(args.out.name + ".state"), settings)
    data = state.data()
    if data is None:
        data = collect(args, target, vocabulary)
        state.begin(data)
    features = Features(target, data["learn"], sizes.taps)
    torch.manual_seed(args.seed)
    drafter = Drafter(sizes, target).to(target.device)
    say(f"a drafter of {sum(p.numel() for p in drafter.parameters()) / 1e6:.1f} million weights, {sizes}")
    steps, tau = train(drafter, target, features, args, state)
    del features
    with torch.no_grad():
        for p in drafter.parameters():
            p.copy_(p.to(torch.bfloat16))            # as the file holds them
    temperatures = fit_temperatures(draft_and_verify(drafter, target, data["calibrate"])[1]) or [1.0] * sizes.block
    report = measure(drafter, target, {name: samples for name, samples in data.items() if name in ("chat", "docs")}, temperatures)
    report |= {"steps": steps, "train_tau": tau, "confidence_temperature": temperatures, "shape": asdict(sizes), "settings": settings}
    write_drafter(args.out, drafter, file, temperatures)
    write_atomically(results, lambda temporary: temporary.write_text(json.dumps(report, indent=1)))
    state.path.unlink(missing_ok=True)
    say(f"wrote {args.out} and {results}")
    return report


def main() -> int:
    try:
        report = run(arguments())
    except Refused as refused:
        print(f"error: {refused}", file=sys.stderr)
        return 1
    for name in ("chat", "docs"):
        if name in report:
            print(f"{name}: {report[name]['accepted_per_block']:.3f} drafts accepted a block, {report[name]['tokens_per_verify']:.3f} tokens a verification")
    return 0


if __name__ == "__main__":
    sys.exit(main())
