// Server-sent events of a fetched body: `EventSource` can't send a key.

/** Longest event that is waited for, in characters: a 64 x 512 map is a tenth of it. */
const EVENT_MAX = 1 << 20;

/** Yields `{event, data}` until the body ends. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = "";
      // The last line has no end yet, nor has the event that it belongs to.
      let from = 0;
      for (let i = 0; i < lines.length - 1; i += 1) {
        if (lines[i].replace("\r", "") !== "") continue;
        const event = parse(lines.slice(from, i));
        from = i + 1;
        if (event) yield event;
      }
      rest = lines.slice(from).join("\n");
      if (rest.length > EVENT_MAX) throw new Error("the server sent an event without an end");
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Lines that begin with a colon are comments; an event without data is none. */
function parse(lines) {
  let event = "message";
  const data = [];
  for (const line of lines) {
    const [, field, value] = /^([^:]*):? ?(.*?)\r?$/s.exec(line) ?? [];
    if (field === "event") event = value;
    if (field === "data") data.push(value);
  }
  return data.length > 0 ? { event, data: data.join("\n") } : null;
}
