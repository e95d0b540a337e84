/* Forerun for programs in C, and whatever speaks C: open a model, generate with a callback, cancel, close.
 *
 * The rules, for all functions:
 *
 * - Strings that go in are UTF-8 and end with a NUL. They, and structures that go in, are only looked at during the call.
 * - A structure that begins with `size` is zeroed, and `size` set to its `sizeof`, before anything else is set. Zero in every
 *   other field means "as the library thinks best"; fields that later versions add are then zero as well.
 * - A function that can fail returns a `forerun_status`. What failed is in forerun_last_error(), in words.
 * - Wrong arguments are errors, never undefined behaviour, as far as C lets anybody see them: NULL, text that isn't UTF-8, a
 *   wrong `size`, a value out of range. A pointer to memory that was freed can't be seen.
 * - Nothing is printed, no signal handler is set, and no environment variable is read.
 * - Link with the libraries that docs/c-api.md names for your system.
 */
#ifndef FORERUN_H
#define FORERUN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A model, ready to answer, with the conversation that it remembers. From forerun_open() to forerun_close(). */
typedef struct forerun_engine forerun_engine;

/* How a call went. */
typedef int32_t forerun_status;

enum {
    FORERUN_OK = 0,
    /* An argument is wrong, or the request can't be answered by this model. The same call will fail again. */
    FORERUN_ERROR_ARGUMENT = 1,
    /* The file can't be read, or isn't a model that runs here. */
    FORERUN_ERROR_MODEL = 2,
    /* The memory doesn't suffice. forerun_last_error() says what would, and where the bytes go. */
    FORERUN_ERROR_MEMORY = 3,
    /* The prompt doesn't fit the context: leave out old messages, or open with more `context`. */
    FORERUN_ERROR_CONTEXT = 4,
    /* Another thread is in forerun_generate() with this engine. */
    FORERUN_ERROR_BUSY = 5,
    /* The loading callback stopped forerun_open(). */
    FORERUN_ERROR_CANCELLED = 6,
    /* The answer failed on its way: the disk, or the system. What was read and said before is kept; try again. */
    FORERUN_ERROR_ENGINE = 7,
    /* A bug in this library, now or in an earlier call. The engine can only be closed. */
    FORERUN_ERROR_INTERNAL = 8
};

/* ---- Opening ---- */

/* Hears how far loading is, in bytes. Returns 0 to go on, anything else to stop. Called on the thread that opens. */
typedef int32_t (*forerun_loading_callback)(void *user, uint64_t bytes_done, uint64_t bytes_total);

/* How a model is opened. */
typedef struct forerun_options {
    /* sizeof(forerun_options). */
    size_t size;
    /* The path of a GGUF file, of any shard of a split one, or of a folder with one model. Must be given. */
    const char *model;
    /* Most memory that the engine may take, in bytes, beside what the rest of the program has. 0: all experts may stay in memory,
     * or nine tenths of what the system has to give if that is less. */
    uint64_t memory_bytes;
    /* Tokens that a conversation may have; its memory is taken at once. 0: the model's own number, at most 4096. */
    uint32_t context;
    /* Threads that compute. 0: one a core. Phones with slow and fast cores: as many as there are fast ones. */
    uint32_t threads;
    /* A folder for what is measured of the disk, which is made if it isn't there. NULL: it is measured anew by each
     * forerun_open(), which takes up to two seconds. */
    const char *cache_folder;
    /* NULL: nobody hears of loading. */
    forerun_loading_callback loading;
    /* Handed to `loading`. */
    void *user;
} forerun_options;

/* Opens a model and stores it in `*engine`; NULL if that fails.
 *
 * Takes seconds: the weights that stay in memory are read. Any number of engines may be open, each with threads and memory
 * of its own. */
forerun_status forerun_open(const forerun_options *options, forerun_engine **engine);

/* Closes an engine; NULL is fine.
 *
 * The pointer must not be used any more, in no thread. A thread that is in forerun_generate() with it may finish: its answer is
 * cancelled, and what belongs to the engine is freed when that call returns. So this may be called from a callback. */
void forerun_close(forerun_engine *engine);

/* ---- Generating ---- */

/* Who speaks. */
enum {
    /* Sets the scene; only first. */
    FORERUN_ROLE_SYSTEM = 1,
    /* A person. */
    FORERUN_ROLE_USER = 2,
    /* The model. */
    FORERUN_ROLE_ASSISTANT = 3
};

/* One message of a conversation. */
typedef struct forerun_message {
    /* FORERUN_ROLE_... */
    int32_t role;
    /* What was said. Nothing in it becomes a control token. */
    const char *content;
} forerun_message;

/* How tokens are chosen. Zero switches a filter or a penalty off. */
typedef struct forerun_sampling {
    /* sizeof(forerun_sampling). */
    size_t size;
    /* The same seed gives the same answer. 0: another one each time; `seed` of the result says which. */
    uint64_t seed;
    /* 0: the most probable token, always. */
    float temperature;
    /* Only the most probable tokens whose probabilities reach this sum. */
    float top_p;
    /* Only tokens with at least this share of the largest probability. */
    float min_p;
    /* Only so many of the most probable tokens. */
    uint32_t top_k;
    /* Divides what speaks for a token that occurred before. */
    float repetition_penalty;
} forerun_sampling;

/* Whether the model thinks before it answers. */
enum {
    /* As the file's template chooses. */
    FORERUN_THINKING_DEFAULT = 0,
    FORERUN_THINKING_ON = 1,
    FORERUN_THINKING_OFF = 2
};

/* What is to be answered. Either `messages` or `prompt` is given.
 *
 * The engine remembers the tokens of the last request and its answer. A request that begins with the same ones, as the next turn
 * of a conversation does, has only the rest read; `reused_tokens` of the result counts them. */
typedef struct forerun_request {
    /* sizeof(forerun_request). */
    size_t size;
    /* A conversation, oldest message first; the file's own template makes a prompt of it. */
    const forerun_message *messages;
    /* Number of messages; 0 with a prompt. */
    size_t n_messages;
    /* A text to go on with, as it is; NULL with messages. */
    const char *prompt;
    /* Not 0: names of control tokens in `prompt`, such as <|im_end|>, stand for these tokens. Only for text that nobody else has
     * a part in. */
    int32_t prompt_has_control_tokens;
    /* FORERUN_THINKING_..., for messages. */
    int32_t thinking;
    /* Most tokens of the answer. 0: as many as the context holds. */
    uint32_t max_tokens;
    /* NULL: what the file suggests, or else the most probable token always. */
    const forerun_sampling *sampling;
    /* Texts that end the answer; they aren't part of it. */
    const char *const *stops;
    /* Number of stop texts. */
    size_t n_stops;
} forerun_request;

/* What an event is about. */
enum {
    /* A part of the prompt was read. The first one comes before anything is read. */
    FORERUN_EVENT_PROMPT = 1,
    /* The answer goes on. */
    FORERUN_EVENT_TEXT = 2,
    /* The model's thoughts before its answer go on. Only for messages. */
    FORERUN_EVENT_THOUGHT = 3
};

/* What happens while an answer is made. Valid during the callback; later versions may add fields. */
typedef struct forerun_event {
    /* FORERUN_EVENT_...; skip what you don't know. */
    int32_t kind;
    /* Tokens of the prompt that are read, with those that were remembered. */
    uint32_t prompt_read;
    /* Tokens of the prompt. */
    uint32_t prompt_tokens;
    /* What is new of the answer or of the thoughts: UTF-8, whole characters, without a NUL at its end. */
    const char *text;
    /* Its bytes; 0 for other events. */
    size_t text_bytes;
} forerun_event;

/* Hears what happens. Returns 0 to go on, anything else to stop.
 *
 * Called on the thread that is in forerun_generate(), which waits for it. It may call every function with this engine but
 * forerun_generate(). It must come back by returning: no exception, no longjmp. */
typedef int32_t (*forerun_callback)(void *user, const forerun_event *event);

/* Why an answer ended. */
enum {
    /* The model ended its turn, or a stop text came. */
    FORERUN_FINISH_STOP = 1,
    /* `max_tokens`, or the context is full. */
    FORERUN_FINISH_LENGTH = 2,
    /* forerun_cancel(), forerun_close(), or the callback. */
    FORERUN_FINISH_CANCELLED = 3
};

/* What came of a request. */
typedef struct forerun_result {
    /* sizeof(forerun_result). */
    size_t size;
    /* FORERUN_FINISH_...; 0 after an error. */
    int32_t finish_reason;
    /* Tokens of the prompt. */
    uint32_t prompt_tokens;
    /* Those of them that were remembered and not read again. */
    uint32_t reused_tokens;
    /* Tokens of the answer, thoughts among them. */
    uint32_t answer_tokens;
    /* What the answer was drawn with. */
    uint64_t seed;
    /* Milliseconds for reading the prompt. */
    double prompt_ms;
    /* Milliseconds from the end of the prompt to the last token. */
    double decode_ms;
} forerun_result;

/* Answers a request, and tells `callback` (NULL: nobody) as it goes. `result` may be NULL.
 *
 * Blocks until the answer is over; call it on a thread that may wait. One answer at a time: from a second thread, or from a
 * callback, it is FORERUN_ERROR_BUSY at once. An answer that is cancelled is no error. */
forerun_status forerun_generate(
    forerun_engine *engine,
    const forerun_request *request,
    forerun_callback callback,
    void *user,
    forerun_result *result);

/* Ends the answer that is being made, within the time of one of the model's layers; returns at once. From any thread, at any
 * time until forerun_close(). While nothing is made, nothing happens: a request that begins later isn't affected.
 *
 * So a cancel that comes before forerun_generate() has begun is lost. Whoever can't rule that out lets the callback
 * look at a flag: its first event comes before anything is read. */
forerun_status forerun_cancel(forerun_engine *engine);

/* ---- Memory, telemetry, errors ---- */

/* Lowers the engine's `memory_bytes`, for when the system is short of memory: experts are dropped and read again when they are
 * needed. Answers don't change, they get slower. It can't be raised again.
 *
 * From any thread; doesn't wait for an answer that is being made, which gives the memory back within the time of one layer.
 * FORERUN_ERROR_MEMORY: what must stay doesn't fit; then nothing has changed. */
forerun_status forerun_lower_budget(forerun_engine *engine, uint64_t memory_bytes);

/* Stores where time, bytes and memory of the last answer went, as a JSON object (`run --json` in README.md says what is in it), in
 * `*json`. Before the first answer it has `memory` and `decisions` only. From any thread, at any time until forerun_close().
 *
 * The text is yours: forerun_free_text() frees it, also after the engine is closed. */
forerun_status forerun_telemetry(forerun_engine *engine, char **json);

/* Frees a text that this library gave away; NULL is fine. */
void forerun_free_text(char *text);

/* What went wrong in the last call on this thread that failed, with names, values and what would be right; "" if none has. Never
 * NULL. Valid until another call fails on this thread, or the thread ends. */
const char *forerun_last_error(void);

/* The library's version, such as "1.2.0". Valid for ever. */
const char *forerun_version(void);

#ifdef __cplusplus
}
#endif

#endif
