/* Prints the numbers of forerun.h, a line each: the test that starts it compares them with the library's. */
#include <stddef.h>
#include <stdio.h>

#include "forerun.h"

#define STRUCTURE(type) printf(#type " %d\n", (int)sizeof(forerun_##type))
#define FIELD(type, field) printf(#type "." #field " %d\n", (int)offsetof(forerun_##type, field))
#define NUMBER(name) printf(#name " %d\n", (int)FORERUN_##name)

int main(void) {
    STRUCTURE(options);
    FIELD(options, size), FIELD(options, model), FIELD(options, memory_bytes), FIELD(options, context);
    FIELD(options, threads), FIELD(options, cache_folder), FIELD(options, loading), FIELD(options, user);
    STRUCTURE(message);
    FIELD(message, role), FIELD(message, content);
    STRUCTURE(sampling);
    FIELD(sampling, size), FIELD(sampling, seed), FIELD(sampling, temperature), FIELD(sampling, top_p);
    FIELD(sampling, min_p), FIELD(sampling, top_k), FIELD(sampling, repetition_penalty);
    STRUCTURE(request);
    FIELD(request, size), FIELD(request, messages), FIELD(request, n_messages), FIELD(request, prompt);
    FIELD(request, prompt_has_control_tokens), FIELD(request, thinking), FIELD(request, max_tokens);
    FIELD(request, sampling), FIELD(request, stops), FIELD(request, n_stops);
    STRUCTURE(event);
    FIELD(event, kind), FIELD(event, prompt_read), FIELD(event, prompt_tokens), FIELD(event, text), FIELD(event, text_bytes);
    STRUCTURE(result);
    FIELD(result, size), FIELD(result, finish_reason), FIELD(result, prompt_tokens), FIELD(result, reused_tokens);
    FIELD(result, answer_tokens), FIELD(result, seed), FIELD(result, prompt_ms), FIELD(result, decode_ms);
    NUMBER(OK), NUMBER(ERROR_ARGUMENT), NUMBER(ERROR_MODEL), NUMBER(ERROR_MEMORY), NUMBER(ERROR_CONTEXT);
    NUMBER(ERROR_BUSY), NUMBER(ERROR_CANCELLED), NUMBER(ERROR_ENGINE), NUMBER(ERROR_INTERNAL);
    NUMBER(ROLE_SYSTEM), NUMBER(ROLE_USER), NUMBER(ROLE_ASSISTANT);
    NUMBER(THINKING_DEFAULT), NUMBER(THINKING_ON), NUMBER(THINKING_OFF);
    NUMBER(EVENT_PROMPT), NUMBER(EVENT_TEXT), NUMBER(EVENT_THOUGHT);
    NUMBER(FINISH_STOP), NUMBER(FINISH_LENGTH), NUMBER(FINISH_CANCELLED);
    return 0;
}
