"""llama.cpp over forced tokens: MODEL usual|mapped THREADS PROMPT TOKENS, where TOKENS are ids, apart by commas.

Reads the prompt in one batch, twice so that the memory which its pages need is there, then the tokens one by one, and prints what `forerun run --json` prints of the same, as far as it is known.
"""

import ctypes
import json
import sys
import time

import llama_cpp as ll


def of_process(path, key):
    with open(f"/proc/self/{path}") as lines:
        value = next(line for line in lines if line.startswith(key)).split()[1]
    return int(value) * (1024 if path == "status" else 1)


def read_bytes():
    return of_process("io", "read_bytes:")


model_path, keeping, n_threads, prompt, tokens = sys.argv[1:6]
said = [int(token) for token in tokens.split(",") if token]
ll.llama_backend_init()
params = ll.llama_model_default_params()
params.use_mmap = True
params.use_extra_bufts = keeping == "usual"
model = ll.llama_model_load_from_file(model_path.encode(), params)
if not model:
    sys.exit(f"llama.cpp can't load {model_path}")
vocab = ll.llama_model_get_vocab(model)
text = prompt.encode()
room = (ll.llama_token * (len(text) + 16))()
n_prompt = ll.llama_tokenize(vocab, text, len(text), room, len(room), False, True)
params = ll.llama_context_default_params()
params.n_ctx = -(-(n_prompt + len(said) + 64) // 256) * 256
params.n_batch = params.n_ubatch = 512
params.n_threads = params.n_threads_batch = int(n_threads)
context = ll.llama_init_from_model(model, params)
n_vocab = ll.llama_vocab_n_tokens(vocab)


def feed(ids):
    """Seconds, and the token that would follow."""
    begin = time.perf_counter()
    for first in range(0, len(ids), 512):
        part = ids[first : first + 512]
        # Named, so that it lives for as long as the batch points to it.
        held = (ll.llama_token * len(part))(*part)
        if ll.llama_decode(context, ll.llama_batch_get_one(held, len(part))) != 0:
            sys.exit("llama_decode failed")
    logits = ll.llama_get_logits_ith(context, -1)
    seconds = time.perf_counter() - begin
    values = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * n_vocab)).contents
    return seconds, max(range(n_vocab), key=values.__getitem__)


feed(list(room[:n_prompt]))
ll.llama_memory_clear(ll.llama_get_memory(context), True)
before = read_bytes()
prompt_seconds, follows = feed(list(room[:n_prompt]))
decode_begins = read_bytes()
answer, seconds = [], 0.0
for token in said:
    answer.append(follows)
    took, follows = feed([token])
    seconds += took
n_agreed = sum(ours == theirs for ours, theirs in zip(said, answer))
print(
    json.dumps(
        {
            "prompt_tokens": n_prompt,
            "prompt_ms": prompt_seconds * 1e3,
            "decode_tokens": len(said),
            "tokens_per_second": len(said) / seconds if said else 0.0,
            "bytes_demand": read_bytes() - before,
            "bytes_guess": 0,
            "bytes_wasted": 0,
            "bytes_decode": read_bytes() - decode_begins,
            "bytes_decode_used": 0,
            "hit_rate": None,
            "overlap_efficiency": None,
            "disk_rate": None,
            "tokens_per_step": 1.0,
            "memory": {"peak": of_process("status", "VmHWM:")},
            "tokens": answer,
            "note": f"{n_agreed} of {len(said)} tokens as ours; llama-cpp-python {ll.__version__}, "
            + ll.llama_print_system_info().decode().strip(),
        }
    )
)
