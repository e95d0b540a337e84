/* A tour of the whole interface, with everything that can be done wrong: `tour MODEL CACHE_FOLDER`. It says where it is, and
 * ends with 1 at the first thing that isn't as forerun.h says. Written for C99 and POSIX threads. */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forerun.h"

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "tour.c:%d: %s\n  last error: %s\n", __LINE__, #condition, forerun_last_error()); \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

/* The call fails with `expected`, and the words say `word`. */
#define FAILS(call, expected, word)                               \
    do {                                                          \
        forerun_status status = (call);                           \
        CHECK(status == (expected));                              \
        CHECK(strstr(forerun_last_error(), (word)) != NULL);      \
    } while (0)

enum { TEXT_MAX = 1 << 14 };

/* What a callback saw, and what it is to do. */
typedef struct watcher {
    forerun_engine *engine;
    char text[TEXT_MAX];
    size_t text_bytes;
    int n_events;
    int n_texts;
    int n_thoughts;
    uint32_t prompt_read;
    /* Returns 1 at this text; 0: never. */
    int stops_at_text;
    /* Called at the first event of the kind. */
    int32_t acts_at;
    void (*acts)(struct watcher *);
    int has_acted;
    int events_after_act;
} watcher;

static int is_utf8(const char *text, size_t n) {
    size_t i = 0;
    while (i < n) {
        unsigned char lead = (unsigned char)text[i];
        size_t more = lead < 0x80 ? 0 : lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc2 ? 1 : 9;
        if (more > 3 || i + more >= n + (more == 0)) return 0;
        for (size_t j = 1; j <= more; j++)
            if (((unsigned char)text[i + j] & 0xc0) != 0x80) return 0;
        i += more + 1;
    }
    return 1;
}

static int32_t watch(void *user, const forerun_event *event) {
    watcher *w = user;
    if (w->n_events++ == 0) CHECK(event->kind == FORERUN_EVENT_PROMPT);
    w->events_after_act += w->has_acted;
    CHECK(event->prompt_read >= w->prompt_read && event->prompt_read <= event->prompt_tokens);
    w->prompt_read = event->prompt_read;
    if (event->kind == FORERUN_EVENT_PROMPT) {
        CHECK(event->text_bytes == 0);
    } else {
        CHECK(event->text_bytes > 0 && is_utf8(event->text, event->text_bytes));
        CHECK(event->prompt_read == event->prompt_tokens);
    }
    w->n_thoughts += event->kind == FORERUN_EVENT_THOUGHT;
    if (event->kind == FORERUN_EVENT_TEXT) {
        w->n_texts++;
        CHECK(w->text_bytes + event->text_bytes < TEXT_MAX);
        memcpy(w->text + w->text_bytes, event->text, event->text_bytes);
        w->text_bytes += event->text_bytes;
        w->text[w->text_bytes] = 0;
    }
    if (w->acts != NULL && !w->has_acted && event->kind == w->acts_at) {
        w->acts(w);
        w->has_acted = 1;
    }
    return w->stops_at_text > 0 && w->n_texts >= w->stops_at_text;
}

static forerun_request asks(const char *prompt, uint32_t max_tokens) {
    forerun_request request;
    memset(&request, 0, sizeof request);
    request.size = sizeof request;
    request.prompt = prompt;
    request.max_tokens = max_tokens;
    return request;
}

static forerun_request says(const forerun_message *messages, size_t n_messages) {
    forerun_request request = asks(NULL, 0);
    request.messages = messages;
    request.n_messages = n_messages;
    request.thinking = FORERUN_THINKING_OFF;
    return request;
}

static forerun_result results(void) {
    forerun_result result;
    memset(&result, 0, sizeof result);
    result.size = sizeof result;
    return result;
}

static forerun_options opens(const char *model, const char *cache) {
    forerun_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.model = model;
    options.cache_folder = cache;
    options.context = 512;
    options.threads = 1;
    return options;
}

static int32_t load_all(void *user, uint64_t done, uint64_t total) {
    uint64_t *last = user;
    CHECK(done > *last && done <= total);
    *last = done;
    return 0;
}

static int32_t load_nothing(void *user, uint64_t done, uint64_t total) {
    (void)user, (void)done, (void)total;
    return 1;
}

static void open_wrongly(const char *model, const char *cache) {
    /* Anything but NULL, to see that it is overwritten; never looked at. */
    forerun_engine *engine = (forerun_engine *)(void *)&engine;
    forerun_options options = opens(model, cache);
    FAILS(forerun_open(&options, NULL), FORERUN_ERROR_ARGUMENT, "`engine` is NULL");
    FAILS(forerun_open(NULL, &engine), FORERUN_ERROR_ARGUMENT, "`options` is NULL");
    CHECK(engine == NULL);
    options.size = 0;
    FAILS(forerun_open(&options, &engine), FORERUN_ERROR_ARGUMENT, "sizeof(forerun_options)");
    options = opens(NULL, cache);
    FAILS(forerun_open(&options, &engine), FORERUN_ERROR_ARGUMENT, "`options.model` is NULL");
    options = opens("no/such/\xff", cache);
    FAILS(forerun_open(&options, &engine), FORERUN_ERROR_ARGUMENT, "not UTF-8 at byte 8");
    options = opens("no/such/model.gguf", cache);
    FAILS(forerun_open(&options, &engine), FORERUN_ERROR_MODEL, "no/such/model.gguf");
    options = opens(model, cache);
    options.memory_bytes = 1;
    FAILS(forerun_open(&options, &engine), FORERUN_ERROR_MEMORY, "smallest that works here");
    options = opens(model, cache);
    options.context = UINT32_MAX;
    FAILS(forerun_open(&options, &engine), FORERUN_ERROR_ARGUMENT, "4294967295");
    options = opens(model, cache);
    options.loading = load_nothing;
    FAILS(forerun_open(&options, &engine), FORERUN_ERROR_CANCELLED, "stopped by its callback");
    CHECK(engine == NULL);
}

static forerun_engine *open_rightly(const char *model, const char *cache) {
    forerun_engine *engine = NULL;
    forerun_options options = opens(model, cache);
    uint64_t loaded = 0;
    options.loading = load_all;
    options.user = &loaded;
    CHECK(forerun_open(&options, &engine) == FORERUN_OK);
    CHECK(engine != NULL && loaded > 0);
    return engine;
}

static void ask_wrongly(forerun_engine *engine) {
    forerun_message message = {FORERUN_ROLE_USER, "Hello"};
    forerun_request request = asks("A river is", 4);
    forerun_result result = results();
    FAILS(forerun_generate(NULL, &request, NULL, NULL, NULL), FORERUN_ERROR_ARGUMENT, "`engine` is NULL");
    FAILS(forerun_generate(engine, NULL, NULL, NULL, NULL), FORERUN_ERROR_ARGUMENT, "`request` is NULL");
    result.size = 3;
    FAILS(forerun_generate(engine, &request, NULL, NULL, &result), FORERUN_ERROR_ARGUMENT, "forerun_result is 3");
    request.size = 1 << 20;
    FAILS(forerun_generate(engine, &request, NULL, NULL, NULL), FORERUN_ERROR_ARGUMENT, "forerun_request is 1048576");
#define WRONG(change, status, word)                                                     \
    do {                                                                                \
        request = asks("A river is", 4);                                                \
        message.role = FORERUN_ROLE_USER;                                               \
        message.content = "Hello";                                                      \
        change;                                                                         \
        result = results();                                                             \
        result.finish_reason = 77;                                                      \
        FAILS(forerun_generate(engine, &request, NULL, NULL, &result), (status), (word)); \
        CHECK(result.finish_reason == 0 && result.size == sizeof result);               \
    } while (0)
    WRONG(request.prompt = NULL, FORERUN_ERROR_ARGUMENT, "this one has neither");
    WRONG((request.messages = &message, request.n_messages = 1), FORERUN_ERROR_ARGUMENT, "this one has both");
    WRONG(request.prompt = "", FORERUN_ERROR_ARGUMENT, "no tokens");
    WRONG(request.prompt = "a\xc3", FORERUN_ERROR_ARGUMENT, "`prompt` is not UTF-8 at byte 1");
    WRONG((request = says(NULL, 2)), FORERUN_ERROR_ARGUMENT, "`messages` is NULL");
    WRONG((request = says(&message, SIZE_MAX)), FORERUN_ERROR_ARGUMENT, "`n_messages` is");
    WRONG((request = says(&message, 1), message.role = 0), FORERUN_ERROR_ARGUMENT, "`messages[0].role` is 0");
    WRONG((request = says(&message, 1), message.content = NULL), FORERUN_ERROR_ARGUMENT, "`messages[0].content` is NULL");
    WRONG((request = says(&message, 1), message.content = "\xff"), FORERUN_ERROR_ARGUMENT, "`messages[0].content` is not UTF-8");
    WRONG((request = says(&message, 1), request.thinking = 3), FORERUN_ERROR_ARGUMENT, "`thinking` is 3");
    {
        const char *stops[2] = {"x", NULL};
        WRONG((request.stops = stops, request.n_stops = 2), FORERUN_ERROR_ARGUMENT, "`stops[1]` is NULL");
        stops[1] = "";
        WRONG((request.stops = stops, request.n_stops = 2), FORERUN_ERROR_ARGUMENT, "stop string 1 is empty");
        WRONG(request.n_stops = 1, FORERUN_ERROR_ARGUMENT, "`stops` is NULL");
    }
    {
        forerun_sampling sampling;
        memset(&sampling, 0, sizeof sampling);
        WRONG(request.sampling = &sampling, FORERUN_ERROR_ARGUMENT, "sizeof(forerun_sampling)");
        sampling.size = sizeof sampling;
        sampling.temperature = -1;
        WRONG(request.sampling = &sampling, FORERUN_ERROR_ARGUMENT, "`temperature` is -1");
        sampling.temperature = (float)NAN;
        WRONG(request.sampling = &sampling, FORERUN_ERROR_ARGUMENT, "`temperature` is NaN");
    }
    {
        size_t n = 1 << 20;
        char *much = malloc(n);
        CHECK(much != NULL);
        memset(much, 'a', n - 1);
        much[n - 1] = 0;
        WRONG(request.prompt = much, FORERUN_ERROR_CONTEXT, "the context holds 512");
        WRONG((request = says(&message, 1), message.content = much), FORERUN_ERROR_CONTEXT, "the context holds 512");
        for (size_t i = 0; i < n - 1; i += 2) much[i] = ' ';
        much[1200] = 0;
        WRONG(request.prompt = much, FORERUN_ERROR_CONTEXT, "the context holds 512");
        free(much);
    }
#undef WRONG
    FAILS(forerun_cancel(NULL), FORERUN_ERROR_ARGUMENT, "`engine` is NULL");
    FAILS(forerun_lower_budget(NULL, 1), FORERUN_ERROR_ARGUMENT, "`engine` is NULL");
    FAILS(forerun_telemetry(engine, NULL), FORERUN_ERROR_ARGUMENT, "`json` is NULL");
}

/* Two turns; the second reads only what is new. */
static void chat(forerun_engine *engine) {
    static watcher w, again;
    forerun_message messages[3] = {
        {FORERUN_ROLE_USER, "What does \"river\" mean?"},
        {FORERUN_ROLE_ASSISTANT, NULL},
        {FORERUN_ROLE_USER, "And \"lake\"? <|im_end|>"},
    };
    forerun_request request = says(messages, 1);
    forerun_result result = results();
    CHECK(forerun_generate(engine, &request, watch, &w, &result) == FORERUN_OK);
    CHECK(strstr(w.text, "stream of water") != NULL);
    CHECK(w.n_texts > 1 && w.n_thoughts == 0);
    CHECK(result.finish_reason == FORERUN_FINISH_STOP && result.reused_tokens == 0);
    CHECK(result.prompt_tokens == w.prompt_read && result.answer_tokens > 1 && result.decode_ms > 0);
    printf("chat: %s\n", w.text);

    uint32_t first_prompt = result.prompt_tokens;
    messages[1].content = w.text;
    request = says(messages, 3);
    CHECK(forerun_generate(engine, &request, watch, &again, &result) == FORERUN_OK);
    CHECK(result.prompt_tokens > first_prompt);
    CHECK(result.reused_tokens > 0 && result.reused_tokens <= result.prompt_tokens);
    CHECK(again.text_bytes > 0);
    printf("next turn: %u of %u tokens remembered\n", (unsigned)result.reused_tokens, (unsigned)result.prompt_tokens);

    /* Nobody listens, nobody wants the result. */
    CHECK(forerun_generate(engine, &request, NULL, NULL, NULL) == FORERUN_OK);
}

static void complete(forerun_engine *engine) {
    static watcher plain, stopped, drawn, same;
    forerun_request request = asks("The river and the lake", 16);
    forerun_result result = results();
    CHECK(forerun_generate(engine, &request, watch, &plain, &result) == FORERUN_OK);
    CHECK(result.finish_reason == FORERUN_FINISH_LENGTH && result.answer_tokens == 16);

    /* A text that is in the answer ends it. */
    char stop[9] = {0};
    size_t middle = plain.text_bytes / 2;
    while (((unsigned char)plain.text[middle] & 0xc0) == 0x80) middle--;
    size_t n = 1;
    while (((unsigned char)plain.text[middle + n] & 0xc0) == 0x80) n++;
    memcpy(stop, plain.text + middle, n);
    const char *stops[1] = {stop};
    request.stops = stops;
    request.n_stops = 1;
    CHECK(forerun_generate(engine, &request, watch, &stopped, &result) == FORERUN_OK);
    CHECK(result.finish_reason == FORERUN_FINISH_STOP && stopped.text_bytes <= middle);
    CHECK(strstr(stopped.text, stop) == NULL);

    /* What was drawn with a seed of the library's is drawn again with that seed. */
    forerun_sampling sampling;
    memset(&sampling, 0, sizeof sampling);
    sampling.size = sizeof sampling;
    sampling.temperature = 1.0F;
    request = asks("The river and the lake", 24);
    request.sampling = &sampling;
    CHECK(forerun_generate(engine, &request, watch, &drawn, &result) == FORERUN_OK);
    CHECK(result.seed != 0);
    sampling.seed = result.seed;
    CHECK(forerun_generate(engine, &request, watch, &same, &result) == FORERUN_OK);
    CHECK(result.seed == sampling.seed && strcmp(drawn.text, same.text) == 0);
    CHECK(drawn.text_bytes > 0 || result.answer_tokens == 0);

    /* The callback may stop it. */
    static watcher short_one;
    short_one.stops_at_text = 2;
    request = asks("The river and the lake", 0);
    CHECK(forerun_generate(engine, &request, watch, &short_one, &result) == FORERUN_OK);
    CHECK(result.finish_reason == FORERUN_FINISH_CANCELLED && short_one.n_texts == 2);
    puts("complete: length, stop text, seed, stopped by the callback");
}

/* On another thread while an answer waits for its callback, so that nothing here depends on time. */
static void on_another_thread(void *(*work)(void *), watcher *w) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, w) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void *cancel_work(void *user) {
    CHECK(forerun_cancel(((watcher *)user)->engine) == FORERUN_OK);
    return NULL;
}

static void cancel_from_another_thread(watcher *w) { on_another_thread(cancel_work, w); }

static void *meddle_work(void *user) {
    watcher *w = user;
    forerun_request request = asks("Me first", 4);
    char *json = NULL;
    CHECK(strcmp(forerun_last_error(), "") == 0);
    FAILS(forerun_generate(w->engine, &request, NULL, NULL, NULL), FORERUN_ERROR_BUSY, "making an answer");
    FAILS(forerun_lower_budget(w->engine, 1), FORERUN_ERROR_MEMORY, "smallest that works here");
    CHECK(forerun_lower_budget(w->engine, (uint64_t)1 << 40) == FORERUN_OK);
    CHECK(forerun_telemetry(w->engine, &json) == FORERUN_OK);
    CHECK(strstr(json, "\"memory\"") != NULL);
    forerun_free_text(json);
    return NULL;
}

static void meddle(watcher *w) {
    forerun_request request = asks("Me first", 4);
    FAILS(forerun_generate(w->engine, &request, NULL, NULL, NULL), FORERUN_ERROR_BUSY, "making an answer");
    on_another_thread(meddle_work, w);
}

static void use_several_threads(forerun_engine *engine) {
    forerun_request request = asks("Once upon a time there was a river, and then", 0);
    forerun_result result = results();
    int32_t kinds[2] = {FORERUN_EVENT_PROMPT, FORERUN_EVENT_TEXT};
    for (int i = 0; i < 2; i++) {
        static watcher w;
        memset(&w, 0, sizeof w);
        w.engine = engine;
        w.acts_at = kinds[i];
        w.acts = cancel_from_another_thread;
        CHECK(forerun_generate(engine, &request, watch, &w, &result) == FORERUN_OK);
        CHECK(w.has_acted && result.finish_reason == FORERUN_FINISH_CANCELLED);
        /* Of one step there may be more than one event, but no other step is run. */
        CHECK(w.events_after_act <= 8 && result.answer_tokens <= 8);
    }
    puts("cancelled from another thread: before the prompt is read, and in the answer");

    /* A cancel while nothing is made is forgotten. */
    static watcher w;
    CHECK(forerun_cancel(engine) == FORERUN_OK);
    request.max_tokens = 4;
    w.engine = engine;
    w.acts_at = FORERUN_EVENT_TEXT;
    w.acts = meddle;
    CHECK(forerun_generate(engine, &request, watch, &w, &result) == FORERUN_OK);
    CHECK(w.has_acted && result.finish_reason != FORERUN_FINISH_CANCELLED && result.answer_tokens > 0);
    puts("busy: refused on another thread and in a callback");
}

static uint64_t lowered_to;

static void lower_now(watcher *w) { CHECK(forerun_lower_budget(w->engine, lowered_to) == FORERUN_OK); }

/* Less memory changes no letter of an answer, whether it is taken while one is made or before. */
static void lower(forerun_engine *engine) {
    static watcher before, meanwhile, after;
    forerun_request request = asks("The river and the lake", 24);
    CHECK(forerun_generate(engine, &request, watch, &before, NULL) == FORERUN_OK);

    FAILS(forerun_lower_budget(engine, 1), FORERUN_ERROR_MEMORY, "the smallest that works here is ");
    double smallest_mib = atof(strstr(forerun_last_error(), "works here is ") + strlen("works here is "));
    CHECK(smallest_mib > 1 && smallest_mib < 1024);
    lowered_to = (uint64_t)((smallest_mib + 8) * 1048576);
    meanwhile.engine = engine;
    meanwhile.acts_at = FORERUN_EVENT_TEXT;
    meanwhile.acts = lower_now;
    CHECK(forerun_generate(engine, &request, watch, &meanwhile, NULL) == FORERUN_OK);
    CHECK(meanwhile.has_acted && strcmp(before.text, meanwhile.text) == 0);

    char *json = NULL;
    CHECK(forerun_telemetry(engine, &json) == FORERUN_OK);
    CHECK(strstr(json, "\"tokens_per_second\"") != NULL && strstr(json, "asked for while running") != NULL);
    forerun_free_text(json);

    lowered_to = (uint64_t)((smallest_mib + 1) * 1048576);
    CHECK(forerun_lower_budget(engine, lowered_to) == FORERUN_OK);
    CHECK(forerun_generate(engine, &request, watch, &after, NULL) == FORERUN_OK);
    CHECK(strcmp(before.text, after.text) == 0);
    printf("lowered to %.1f MiB: the same answer\n", (double)lowered_to / 1048576);
}

static void close_now(watcher *w) { forerun_close(w->engine); }

/* The engine is closed while it answers. */
static void close_early(const char *model, const char *cache) {
    static watcher w;
    forerun_request request = asks("The river and the lake", 0);
    forerun_result result = results();
    char *json = NULL;
    w.engine = open_rightly(model, cache);
    CHECK(forerun_telemetry(w.engine, &json) == FORERUN_OK);
    w.acts_at = FORERUN_EVENT_TEXT;
    w.acts = close_now;
    CHECK(forerun_generate(w.engine, &request, watch, &w, &result) == FORERUN_OK);
    CHECK(result.finish_reason == FORERUN_FINISH_CANCELLED);
    CHECK(strstr(json, "\"decisions\"") != NULL);
    forerun_free_text(json);
    puts("closed in a callback");
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    printf("forerun %s\n", forerun_version());
    CHECK(strcmp(forerun_last_error(), "") == 0);
    open_wrongly(argv[1], argv[2]);
    forerun_engine *engine = open_rightly(argv[1], argv[2]);
    ask_wrongly(engine);
    puts("errors: each with its status and its words");
    chat(engine);
    complete(engine);
    use_several_threads(engine);
    lower(engine);
    forerun_close(engine);
    close_early(argv[1], argv[2]);
    forerun_close(NULL);
    forerun_free_text(NULL);
    puts("the tour is over");
    return 0;
}
