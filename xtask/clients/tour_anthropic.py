"""The official Anthropic client, unchanged, against a server of ours."""

import json

import anthropic
from tour import ADD, ANSWER, KEY, KEYED_URL, QUESTION, URL, check_sum, raises, stop, tour, until_idle

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {"name": "add", "description": "Adds.", "input_schema": ADD}
# This client has no argument for it, but clients before it did.
GREEDY = {"temperature": 0}
THINK = {"type": "enabled", "budget_tokens": 1024}


def ask(**more):
    more.setdefault("messages", MESSAGES)
    more.setdefault("max_tokens", 200)
    more.setdefault("extra_body", GREEDY)
    return client.messages.create(model="pico", **more)


@stop
def whole():
    answer = ask()
    assert [block.type for block in answer.content] == ["text"] and answer.content[0].text == ANSWER, answer
    assert answer.stop_reason == "end_turn" and answer.usage.output_tokens > 0
    assert answer.usage.cache_read_input_tokens is not None


@stop
def stream():
    with client.messages.stream(model="pico", messages=MESSAGES, max_tokens=200, extra_body=GREEDY) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text == ANSWER and final.content[0].text == ANSWER, final
    assert final.usage.output_tokens > 0 and final.stop_reason == "end_turn"


@stop
def order_of_events():
    kinds = [event.type for event in ask(stream=True)]
    assert kinds[0] == "message_start" and kinds[1] == "content_block_start", kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    assert set(kinds[2:-3]) == {"content_block_delta"}, kinds


@stop
def thoughts():
    answer = ask(thinking=THINK)
    assert [block.type for block in answer.content] == ["thinking", "text"], answer
    with client.messages.stream(
        model="pico", messages=MESSAGES, max_tokens=200, thinking=THINK, extra_body=GREEDY
    ) as events:
        for _ in events:
            pass
        final = events.get_final_message()
    assert final.content[0].thinking == answer.content[0].thinking
    assert final.content[0].signature == answer.content[0].signature
    history = [*MESSAGES, {"role": "assistant", "content": final.content}, {"role": "user", "content": "Really?"}]
    ask(messages=history, max_tokens=8)


@stop
def system_as_text_and_blocks():
    text = ask(system="Be short.", max_tokens=8)
    blocks = ask(system=[{"type": "text", "text": "Be short."}], max_tokens=8)
    assert text.content[0].text == blocks.content[0].text


@stop
def stop_sequences():
    answer = ask(stop_sequences=["never", " = "])
    assert answer.content[0].text == "27 + 45", answer
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " = ")


@stop
def too_few_tokens():
    assert ask(max_tokens=2).stop_reason == "max_tokens"


@stop
def tools():
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "add"}):
        answer = ask(tools=[TOOL], tool_choice=choice)
        assert answer.stop_reason == "tool_use", answer
        use = answer.content[-1]
        assert use.type == "tool_use" and use.name == "add"
        check_sum(use.input)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "72"}]}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    ask(messages=history, tools=[TOOL], max_tokens=16)


@stop
def tools_streamed():
    with client.messages.stream(
        model="pico", messages=MESSAGES, max_tokens=200, tools=[TOOL], tool_choice={"type": "tool", "name": "add"}
    ) as events:
        kinds = {event.type for event in events}
        final = events.get_final_message()
    assert "input_json" in kinds, kinds
    assert final.stop_reason == "tool_use"
    check_sum(final.content[-1].input)


@stop
def schema():
    answer = ask(output_config={"format": {"type": "json_schema", "schema": ADD}})
    check_sum(json.loads(answer.content[0].text))


@stop
def counting():
    counted = client.messages.count_tokens(model="pico", messages=MESSAGES, system="Be short.")
    usage = ask(system="Be short.", max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


@stop
def bad_requests():
    raises(anthropic.BadRequestError, lambda: ask(extra_body={"temperature": -1}))
    raises(anthropic.BadRequestError, lambda: ask(max_tokens=0))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    error = raises(anthropic.BadRequestError, lambda: ask(messages=[{"role": "user", "content": [image]}]))
    assert "messages[0].content[0].type" in error.body["error"]["message"], error
    assert error.body["type"] == "error" and error.body["error"]["type"] == "invalid_request_error"
    server_tool = {"type": "web_search_20250305", "name": "web_search"}
    raises(anthropic.BadRequestError, lambda: ask(tools=[server_tool]))


@stop
def keys_and_rates():
    def ask_with(key):
        with anthropic.Anthropic(base_url=KEYED_URL, api_key=key, max_retries=0) as keyed:
            return keyed.messages.count_tokens(model="pico", messages=MESSAGES)

    error = raises(anthropic.AuthenticationError, lambda: ask_with("wrong"))
    assert error.body["error"]["type"] == "authentication_error", error
    error = raises(anthropic.RateLimitError, lambda: [ask_with(KEY) for _ in range(10)])
    assert error.body["error"]["type"] == "rate_limit_error", error


@stop
def unknown_path():
    raises(anthropic.NotFoundError, lambda: client.messages.batches.retrieve("batch_1"))


@stop
def cancelling_frees_the_slot():
    for _ in range(3):
        events = ask(stream=True, max_tokens=4000, messages=[{"role": "user", "content": "Tell me a story."}])
        for event in events:
            if event.type == "content_block_delta":
                break
        events.close()
        until_idle()


tour()
