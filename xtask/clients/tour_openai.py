"""The official OpenAI client, unchanged, against a server of ours."""

import json
from typing import Literal

import openai
from pydantic import BaseModel
from tour import ADD, ANSWER, KEY, KEYED_URL, QUESTION, URL, check_sum, raises, stop, tour, until_idle

client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD}}
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}


class Answer(BaseModel):
    is_right: bool
    kind: Literal["even", "odd"]


def chat(**more):
    more.setdefault("max_tokens", 200)
    more.setdefault("extra_body", QUIET)
    more.setdefault("messages", MESSAGES)
    more.setdefault("temperature", 0)
    return client.chat.completions.create(model="pico", **more)


@stop
def models():
    listed = client.models.list().data
    assert client.models.retrieve(listed[0].id).id == listed[0].id
    raises(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))


@stop
def chat_whole():
    answer = chat()
    assert answer.choices[0].message.content == ANSWER, answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens is not None


@stop
def chat_stream():
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER, text
    assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices


@stop
def thoughts():
    answer = chat(extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert answer.choices[0].message.reasoning_content
    assert answer.choices[0].message.content == ANSWER


@stop
def several_choices():
    answer = chat(n=3, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


@stop
def completions():
    answer = client.completions.create(model="pico", prompt="Once upon a time", max_tokens=8, temperature=0)
    chunks = client.completions.create(
        model="pico", prompt="Once upon a time", max_tokens=8, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


@stop
def stop_texts():
    answer = chat(stop=[" = "])
    assert answer.choices[0].message.content == "27 + 45", answer
    assert answer.choices[0].finish_reason == "stop"


@stop
def tools_required():
    answer = chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls" and answer.choices[0].message.content is None
    assert call.id and call.type == "function" and call.function.name == "add"
    check_sum(json.loads(call.function.arguments))


@stop
def tools_named_streamed():
    named = {"type": "function", "function": {"name": "add"}}
    with client.chat.completions.stream(
        model="pico", messages=MESSAGES, tools=[TOOL], tool_choice=named, max_tokens=200, extra_body=QUIET
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    call = final.choices[0].message.tool_calls[0]
    assert call.function.name == "add" and final.choices[0].finish_reason == "tool_calls"
    check_sum(json.loads(call.function.arguments))


@stop
def tools_there_and_back():
    call = chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "72"}
    answer = chat(messages=[*MESSAGES, call, result], tools=[TOOL], tool_choice="none", max_tokens=16)
    assert answer.choices[0].message.tool_calls is None


@stop
def schema():
    people = {"type": "json_schema", "json_schema": {"name": "sum", "schema": ADD, "strict": True}}
    check_sum(json.loads(chat(response_format=people).choices[0].message.content))
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = chat(response_format=people, extra_body=thinking, max_tokens=400)
    if answer.choices[0].finish_reason == "stop":
        check_sum(json.loads(answer.choices[0].message.content))
    anything = chat(response_format={"type": "json_object"}, max_tokens=400)
    if anything.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(anything.choices[0].message.content), dict)


@stop
def schema_parsed():
    parsed = client.chat.completions.parse(
        model="pico", messages=MESSAGES, response_format=Answer, max_tokens=200, extra_body=QUIET, temperature=0
    )
    assert isinstance(parsed.choices[0].message.parsed, Answer), parsed


@stop
def logprobs():
    answer = chat(logprobs=True, top_logprobs=3)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 and token.bytes is not None for token in tokens)


@stop
def bad_requests():
    assert raises(openai.BadRequestError, lambda: chat(temperature=-1)).param == "temperature"
    assert raises(openai.BadRequestError, lambda: chat(logit_bias={"5": 1})).code == "unsupported_parameter"
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "not": {}}}}
    assert raises(openai.BadRequestError, lambda: chat(response_format=wrong)).param.startswith("response_format")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    raises(openai.BadRequestError, lambda: chat(messages=[{"role": "user", "content": [image]}]))
    long = [{"role": "user", "content": "word " * 100_000}]
    assert raises(openai.BadRequestError, lambda: chat(messages=long)).code == "context_length_exceeded"


@stop
def keys_and_rates():
    def ask(key):
        with openai.OpenAI(base_url=KEYED_URL + "/v1", api_key=key, max_retries=0) as keyed:
            return keyed.models.list()

    raises(openai.AuthenticationError, lambda: ask("wrong"))
    ask(KEY)
    error = raises(openai.RateLimitError, lambda: [ask(KEY) for _ in range(10)])
    assert int(error.response.headers["retry-after"]) > 0


@stop
def cancelling_frees_the_slot():
    for _ in range(3):
        stream = chat(stream=True, max_tokens=-1, messages=[{"role": "user", "content": "Tell me a story."}])
        next(iter(stream))
        stream.close()
        until_idle()


def respond(**more):
    more.setdefault("input", QUESTION)
    more.setdefault("max_output_tokens", 200)
    more.setdefault("reasoning", {"effort": "none"})
    return client.responses.create(model="pico", temperature=0, store=False, **more)


RESPONSE_TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": ADD, "strict": True}


@stop
def responses_whole():
    answer = respond(instructions="Be short.")
    assert answer.status == "completed" and answer.output_text, answer
    assert answer.usage.input_tokens_details.cached_tokens is not None
    plain = respond()
    assert plain.output_text == ANSWER, plain.output_text


@stop
def responses_stream():
    with client.responses.stream(
        model="pico", input=QUESTION, store=False, reasoning={"effort": "high"}, temperature=0
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == ANSWER, final
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert "response.reasoning_text.delta" in kinds and "response.output_text.delta" in kinds


@stop
def responses_tools():
    answer = respond(tools=[RESPONSE_TOOL], tool_choice="required", parallel_tool_calls=False)
    call = answer.output[-1]
    assert call.type == "function_call" and call.name == "add", answer.output
    check_sum(json.loads(call.arguments))
    history = [
        {"role": "user", "content": QUESTION},
        *answer.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "72"},
    ]
    again = respond(input=history, tools=[RESPONSE_TOOL], tool_choice="none", max_output_tokens=16)
    assert again.output and again.output[0].type == "message"


@stop
def responses_tools_streamed():
    events = list(respond(tools=[RESPONSE_TOOL], tool_choice={"type": "function", "name": "add"}, stream=True))
    deltas = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    check_sum(json.loads(deltas))
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events)))


@stop
def responses_schema():
    parsed = client.responses.parse(
        model="pico", input=QUESTION, text_format=Answer, store=False, reasoning={"effort": "none"}, temperature=0
    )
    assert isinstance(parsed.output_parsed, Answer), parsed


@stop
def responses_without_memory():
    for field in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"background": True}):
        error = raises(openai.BadRequestError, lambda field=field: respond(**field))
        assert error.param == next(iter(field)), error


tour()
