"""The rules of HUMA 0.2.0, `N1` to `N87`, and what was ambiguous in the documents of both versions, `A1` to `A40`."""

from tests.rules.huma_v0_1 import EVENTS, TOOLS
from tests.rules.rule import SERVED, SERVER, later, not_ours, rule

NEW = "HUMA 0.2.0, Event Protocol"
BOTH = "HUMA 0.1 and 0.2.0"

HUMA_0_2 = {
    "N1": rule(f"{NEW}: Overview", "R", "codec", "No version field is written on the wire."),
    "N2": rule(f"{NEW}: Transport", "R", "codec", "What we say travels on `message` as one JSON object."),
    "N3": rule(f"{NEW}: Transport", "R", "codec", "Calls, cancels and messaging are understood on `event`."),
    "N4": rule(f"{NEW}: Transport", "R", "codec", "Errors are understood on `error`."),
    "N5": rule(
        f"{NEW}: Overview", "R", "codec", "We write context-update, tool-result and addon-tool-event, nothing else."
    ),
    "N6": rule(
        f"{NEW}: Overview", "R", "codec", "tool-call, cancel-tool-call, messaging and error each have their kind."
    ),
    "N7": rule(f"{NEW}: Client Events", "R", "codec", "A payload that is no JSON object is malformed."),
    "N8": rule(
        f"{NEW}: Client Events", "R", "codec", "The types of 0.1 are never written and never taken for ours in 0.2.0."
    ),
    "N9": rule(
        f"{NEW}: Client Events", "R", "codec",
        "The keys __proto__, constructor and prototype are found at any depth of a client event's records.",
    ),
    "N10": rule(f"{NEW}: context-update", "R", "codec", "Fields stand at the top, without a `content` around them."),
    "N11": rule(f"{NEW}: Server Events", "R", "codec", "A message without a `type` string is malformed."),
    "N12": rule(f"{NEW}: context-update", "R", "codec", "A context update says so in `type`."),
    "N13": rule(f"{NEW}: context-update", "R", "codec", "`triggering` of an update is there and a real boolean."),
    "N14": rule(f"{NEW}: context-update", "R", "codec", "An update's name has 1 to 128 characters."),
    "N15": rule(f"{NEW}: context-update", "R", "codec", "An update's context is an object with any keys."),
    "N16": rule(f"{NEW}: context-update", "R", "codec", "An update's description is a string of any length."),
    "N17": rule(f"{NEW}: triggering", "G", "codec", "What should wake the agent is written triggering true."),
    "N18": not_ours(f"{NEW}: triggering", "R", "A triggering update also runs emotion and reflection.", SERVER),
    "N19": rule(f"{NEW}: triggering", "R", "codec", "What should not wake the agent is written triggering false."),
    "N20": rule(
        f"{NEW}: triggering", "G", "core", "Hydration and the updates of an outcome never wake the agent."
    ),
    "N21": rule(f"{NEW}: context-update", "I", "codec", "The same name travels with either value of triggering."),
    "N22": rule(
        f"{NEW}: context-update", "G", "core", "The history is one string of lines `[HH:MM] Name: text`, bounded."
    ),
    "N23": rule(
        f"{NEW}: triggering", "R", "core", "On each connect the last context is sent without waking the agent."
    ),
    "N24": rule(f"{NEW}: tool-result", "R", "codec", "A result says so in `type`."),
    "N25": rule(f"{NEW}: tool-result", "R", "codec", "`triggering` of a result is there and a real boolean."),
    "N26": rule(f"{NEW}: tool-result", "R", "codec", "A result carries the id of its call."),
    "N27": rule(f"{NEW}: tool-result", "R", "codec", "A result carries the tool name of its call."),
    "N28": rule(f"{NEW}: tool-result", "R", "codec", "An outcome is success, failure or canceled, nothing else."),
    "N29": rule(f"{NEW}: tool-result", "R", "codec", "A result's value may be any JSON, or absent."),
    "N30": rule(f"{NEW}: tool-result", "R", "codec", "A value that is not JSON is refused before it is sent."),
    "N31": rule(f"{NEW}: tool-result", "R", "codec", "A value of more than 65,536 characters of JSON is refused."),
    "N32": rule(f"{NEW}: tool-result", "R", "codec", "A failure's text travels in `error`."),
    "N33": rule(f"{NEW}: outcome", "G", "codec", "A success with no value has no `result`, or a null one."),
    "N34": rule(f"{NEW}: outcome", "G", "codec", "A failure always has an error text."),
    "N35": rule(f"{NEW}: outcome", "R", "core", "A call the agent has withdrawn is answered as canceled."),
    "N36": rule(f"{NEW}: triggering in results", "G", "core", "A success wakes the agent unless the backend says no."),
    "N37": rule(f"{NEW}: triggering in results", "G", "core", "A canceled result never wakes the agent."),
    "N38": rule(f"{NEW}: tool-result, Examples", "I", "core", "A failure wakes the agent unless the backend says no."),
    "N39": rule(f"{NEW}: tool-result, Examples", "I", "codec", "A canceled result has no value."),
    "N40": rule(
        f"{NEW}: tool-result, Examples", "I", "codec", "A string that holds JSON is passed as the string it is."
    ),
    "N41": rule(f"{NEW}: addon-tool-event", "R", "codec", "An addon event says so in `type`."),
    "N42": rule(f"{NEW}: addon-tool-event", "R", "codec", "An addon event carries the id of the event it answers."),
    "N43": rule(f"{NEW}: addon-tool-event", "R", "codec", "An addon event's data is an object."),
    "N44": rule(f"{NEW}: addon-tool-event", "I", "codec", "An addon event has no `triggering`."),
    "N45": rule(f"{NEW}: addon-tool-event", "R", "core", "An addon event never settles a call."),
    "N46": rule(f"{NEW}: addon-tool-event", "R", "codec", "Forbidden keys are found in an addon event's data."),
    "N47": rule(
        f"{NEW}: Messaging Confirmation", "R", "codec", "A confirmation repeats the zero-based index of its message."
    ),
    "N48": rule(f"{NEW}: Messaging Confirmation", "R", "codec", "A confirmation's `success` is a real boolean."),
    "N49": rule(
        f"{NEW}: Messaging Confirmation", "R", "codec", "A confirmation of success may carry the new context."
    ),
    "N50": rule(f"{NEW}: Messaging Confirmation", "R", "codec", "A confirmation of failure may carry an error text."),
    "N51": rule(
        f"{NEW}: Messaging Confirmation", "R", "core", "A message is confirmed or refused well within 30 seconds."
    ),
    "N52": rule(
        f"{NEW}: Messaging Confirmation", "R", "core",
        "After 30 seconds no confirmation is sent; the truth follows as an update that does not wake.",
    ),
    "N53": rule(f"{NEW}: tool-call", "R", "codec", "A tool call is known by its `type`."),
    "N54": rule(f"{NEW}: tool-call", "R", "codec", "A call's id is a string; without one the frame is malformed."),
    "N55": rule(f"{NEW}: tool-call", "R", "codec", "A call's tool name is a string."),
    "N56": rule(f"{NEW}: tool-call", "R", "codec", "A call's arguments are an object."),
    "N57": rule(f"{NEW}: tool-call", "R", "core", "Who answers a call is found by its tool's name."),
    "N58": rule(f"{NEW}: tool-call", "R", "executor", "The executor gets the arguments as the agent gave them."),
    "N59": rule(f"{NEW}: tool-call", "R", "core", "A result repeats the id and the tool name of its call."),
    "N60": rule(
        f"{NEW}: tool-call", "R", "core", "A tool nobody serves ends in a waking failure whose text names the tool."
    ),
    "N61": rule(f"{NEW}: cancel-tool-call", "R", "codec", "A cancel is known by its `type`."),
    "N62": rule(f"{NEW}: cancel-tool-call", "R", "codec", "A cancel names its call; without it it is malformed."),
    "N63": rule(f"{NEW}: cancel-tool-call", "R", "codec", "A cancel's tool name is read where it is given."),
    "N64": rule(f"{NEW}: cancel-tool-call", "R", "codec", "A cancel may carry a reason."),
    "N65": not_ours(
        f"{NEW}: cancel-tool-call", "R", "A cancel is sent when a waking event interrupts the agent.",
        f"{SERVER}; A6 draws the consequence",
    ),
    "N66": rule(f"{NEW}: cancel-tool-call", "R", "runtime", "The executor of a withdrawn call is told to stop."),
    "N67": rule(
        f"{NEW}: cancel-tool-call", "R", "core",
        "A cancel is answered with a canceled result that does not wake, with the call's id and tool name.",
    ),
    "N68": rule(f"{NEW}: messaging", "R", "codec", "A messaging event is known by its `type`."),
    "N69": rule(
        f"{NEW}: messaging", "R", "codec", "Its `event` is typing_start, message_sent or typing_end."
    ),
    "N70": rule(f"{NEW}: messaging", "R", "codec", "It may carry the id of the whole burst."),
    "N71": rule(f"{NEW}: messaging", "R", "codec", "message_sent carries the text."),
    "N72": rule(f"{NEW}: messaging", "R", "codec", "message_sent carries the zero-based index in the burst."),
    "N73": rule(f"{NEW}: messaging", "R", "codec", "message_sent may say how many the burst has."),
    "N74": rule(f"{NEW}: messaging", "R", "codec", "typing_end may carry a reason."),
    "N75": rule(f"{NEW}: messaging", "R", "codec", "extra_args are passed on as they are."),
    "N76": rule(
        f"{NEW}: Messaging Lifecycle", "R", "core", "Each message of a burst is confirmed once, index by index."
    ),
    "N77": not_ours(f"{NEW}: Messaging Lifecycle", "R", "The next message waits for the confirmation.", SERVER),
    "N78": rule(f"{NEW}: Client Responsibilities", "G", "runtime", "Followers of a session see typing_start live."),
    "N79": rule(
        f"{NEW}: Client Responsibilities", "R", "core",
        "A message is delivered first and then confirmed, with the event's own id and index.",
    ),
    "N80": rule(
        f"{NEW}: Client Responsibilities", "R", "runtime", "Followers see typing_end live, with its reason."
    ),
    "N81": rule(f"{NEW}: error", "R", "codec", "An error is known by its `type` and its channel."),
    "N82": rule(f"{NEW}: error", "R", "codec", "An error's message is a string."),
    "N83": rule(f"{NEW}: error", "R", "codec", "An error may carry a code."),
    "N84": rule(f"{NEW}: error", "I", "codec", "An error claims no cause, since it names none."),
    "N85": rule(
        f"{NEW}: Validation Limits", "R", "codec",
        "Exactly at a limit a name, a value or an outcome passes; one beyond it does not.",
    ),
    "N86": rule(
        f"{NEW}: Validation Limits", "R", "codec", "Forbidden keys are refused in an update's context and in data."
    ),
    "N87": rule(
        f"{NEW}: Validation Limits", "R", "core", "The default deadline for delivering a message is under 30 seconds."
    ),
}  # fmt: skip

AMBIGUOUS = {
    "A1": rule(
        f"{NEW}: Transport against Server Events", "A", "connector",
        "Errors are heard on `error` and on `event`; the same one heard twice at once counts once.",
    ),
    "A2": rule(
        f"{TOOLS}: Tool Cancellation against {NEW}: cancel-tool-call", "A", "core",
        "A cancel is matched by the call's id alone; the name comes from the call on record.",
    ),
    "A3": rule(
        f"{EVENTS}: Tool Result Schema", "A", "codec",
        "A missing status means completed; a failure without a text gets one; canceled with success is malformed.",
    ),
    "A4": rule(
        f"{NEW}: tool-result", "A", "core", "A result always carries the tool name of its call on record."
    ),
    "A5": rule(
        f"{EVENTS}: Complete Flow against {TOOLS}: Event Sequencing", "A", "core",
        "Where the documents contradict each other, updates go first and the result after them.",
    ),
    "A6": rule(
        f"{TOOLS}: Event Sequencing with {NEW}: cancel-tool-call", "A", "core",
        "The updates of an outcome never wake the agent, so that they cannot make it cancel the very call.",
    ),
    "A7": rule(
        f"{EVENTS}: Message Events against {NEW}: Client Events", "A", "core",
        "A message to a 0.2.0 agent travels inside a full context update.",
    ),
    "A8": rule(
        f"{EVENTS}: Image Support", "A", "codec",
        "Images travel only inside a message, as data URLs of the four known media types and at most 4 MB.",
    ),
    "A9": rule(
        f"{NEW}: Transport", "A", "connector",
        "A frame the server would choke on is refused here, and large frames from the server are received.",
    ),
    "A10": rule(
        f"{NEW}: Validation Limits", "A", "codec",
        "Lengths are counted in UTF-16 units of compact JSON, as JavaScript counts.",
    ),
    "A11": rule(
        f"{NEW}: tool-result", "A", "core",
        "An outcome too big for the protocol is told in a bounded form, and the loss is recorded.",
    ),
    "A12": rule(
        f"{NEW}: Validation Limits", "A", "codec",
        "Forbidden keys are refused only in `context` and `data` of client events, deep and large ones included.",
    ),
    "A13": rule(
        f"{NEW}: triggering", "A", "codec", "0, 1 and \"true\" are no booleans; 0.2.0 refuses a missing triggering."
    ),
    "A14": rule(
        f"{NEW}: Messaging Confirmation", "A", "core",
        "A delivery not done in our own shorter time is confirmed as failed; later only a correction follows.",
    ),
    "A15": not_ours(
        f"{NEW}: Messaging Lifecycle", "A", "Hide the typing sign also on a message, an error or a silence.",
        "binds whoever shows the typing sign",
    ),
    "A16": rule(
        f"{NEW}: Messaging Lifecycle", "A", "core", "A delivered message of an aborted burst is still confirmed."
    ),
    "A17": rule(
        f"{NEW}: Messaging Confirmation", "A", "core",
        "After a failed confirmation a further message of the burst is handled like any other.",
    ),
    "A18": rule(f"{NEW}: messaging", "A", "codec", "typing_start needs no call id."),
    "A19": rule(f"{NEW}: messaging", "A", "codec", "extra_args belong to the one message they came with."),
    "A20": rule(
        f"{NEW}: addon-tool-event", "A", "core",
        "The id of a burst never gets a tool result, not even when a cancel names it.",
    ),
    "A21": rule(
        f"{TOOLS}: Tool Cancellation", "A", "core",
        "Cancel and outcome race: the first wins, the other is silent; a cancel for an unknown id does no harm.",
    ),
    "A22": rule(
        f"{NEW}: cancel-tool-call", "A", "core",
        "A cancel is answered at once; what the executor says later is recorded as late and not sent.",
    ),
    "A23": later(
        f"{TOOLS}: Tool Cancellation", "A", "core", "Our own cancel is final whether or not the client answers it.",
        reason=SERVED,
    ),
    "A24": rule(
        f"{EVENTS}: Tool Result Schema", "A", "core", "An executor may cancel unasked, and the agent is told so."
    ),
    "A25": rule(f"{NEW}: triggering in results", "A", "core", "Failures wake the agent by default."),
    "A26": rule(
        BOTH, "A", "core", "The gateway sets the deadline the protocol lacks; when it passes, the call fails."
    ),
    "A27": rule(
        BOTH, "A", "runtime",
        "Open calls outlive a lost link; after a reconnect come the hydration, then what waited, in order and once.",
    ),
    "A28": rule(BOTH, "A", "config", "One agent is served through one link; naming it twice is found by the check."),
    "A29": rule(
        f"{NEW}: Messaging Confirmation", "A", "core",
        "The context of an update and of a confirmation is always the full one.",
    ),
    "A30": rule(f"{NEW}: Transport", "A", "codec", "A cancel is understood on `event`."),
    "A31": rule(
        f"{NEW}: Overview", "A", "codec", "A type that is not documented is kept as it is and breaks nothing."
    ),
    "A32": rule(BOTH, "A", "connector", "No acknowledgement is asked of the server."),
    "A33": rule(
        f"{NEW}: error", "A", "core", "An INVALID_EVENT soon after a send is taken as the refusal of that send."
    ),
    "A34": rule(BOTH, "A", "config", "Which dialect a link speaks is what the configuration says."),
    "A35": rule(
        f"{NEW}: context-update", "A", "codec", "An empty description or context passes; a null context does not."
    ),
    "A36": rule(
        f"{NEW}: messaging", "A", "codec", "An index is a whole number from 0, also written 0.0, and never a boolean."
    ),
    "A37": rule(f"{NEW}: tool-result", "A", "codec", "NaN, infinities and bytes are refused, not sent."),
    "A38": rule(
        f"{NEW}: outcome", "A", "codec",
        "A success is never written with an error nor a failure with a value; read, the outcome decides.",
    ),
    "A39": rule(
        BOTH, "A", "connector",
        "A refusal is understood in each of its shapes; a wrong key or an unknown agent is not tried again soon.",
    ),
    "A40": rule(BOTH, "A", "runtime", "The key in the query string appears in no log line of anybody."),
}  # fmt: skip
