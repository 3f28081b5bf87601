// The official SDK against two replicas of the gateway: `node smoke.mjs URL URL KEY`. Ends with a failure when an answer
// is not what it should be; prints what it saw.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [firstUrl, secondUrl, apiKey] = process.argv.slice(2);
const client = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const first = client(firstUrl);
const second = client(secondUrl);

async function streamed(replica, request) {
  const types = [];
  let response;
  for await (const event of await replica.responses.create({ ...request, stream: true })) {
    types.push(event.type);
    if (event.type === "response.completed") response = event.response;
  }
  assert.equal(types[0], "response.created");
  assert.equal(types.at(-1), "response.completed");
  assert.ok(types.includes("response.output_text.delta"));
  return response;
}

async function continued(model, heard) {
  const buffered = await first.responses.create({ model, input: "alpha" });
  assert.equal(buffered.output_text, `${heard}: alpha`);
  const onTheOther = await streamed(second, { model, input: "beta", previous_response_id: buffered.id });
  assert.equal(onTheOther.output[0].content[0].text, `${heard}: alpha | beta`);
  const last = await first.responses.create({ model, input: "gamma", previous_response_id: onTheOther.id });
  assert.equal(last.output_text, `${heard}: alpha | beta | gamma`);
  assert.equal((await second.responses.retrieve(last.id)).output_text, last.output_text);
  const inputs = await second.responses.inputItems.list(last.id);
  assert.equal(inputs.data[0].content[0].text, "gamma");
  await second.responses.delete(last.id);
  await assert.rejects(first.responses.retrieve(last.id), OpenAI.NotFoundError);
}

async function conversed() {
  const made = await first.conversations.create();
  await first.conversations.items.create(made.id, { items: [{ role: "user", content: "alpha" }] });
  const onC = await second.responses.create({ model: "chat", input: "beta", conversation: made.id });
  assert.equal(onC.output_text, "c heard: alpha | beta");
  const onP1 = await streamed(first, { model: "auto", input: "gamma", conversation: made.id });
  assert.equal(onP1.output[0].content[0].text, "p1 heard: alpha | beta | gamma");
  const texts = [];
  for await (const item of second.conversations.items.list(made.id, { order: "asc", limit: 2 })) {
    texts.push(item.content[0].text);
  }
  assert.deepEqual(texts, ["alpha", "beta", onC.output_text, "gamma", "p1 heard: alpha | beta | gamma"]);
  await second.conversations.update(made.id, { metadata: { ticket: "7" } });
  assert.deepEqual((await first.conversations.retrieve(made.id)).metadata, { ticket: "7" });
  await second.conversations.delete(made.id);
}

async function refused() {
  const asking = second.responses.create({ model: "auto", input: "x", previous_response_id: "resp_unknown" });
  await assert.rejects(asking, (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, "previous_response_not_found");
    assert.equal(error.error.reason, "unknown");
    return true;
  });
}

await continued("auto", "p1 heard");
await continued("chat", "c heard");
await conversed();
await refused();
console.log("ok");
