CREATE SCHEMA first_release;
CREATE TABLE first_release.calls (
    id bigint NOT NULL,
    call_id text NOT NULL COLLATE pg_catalog."C",
    session_id text NOT NULL COLLATE pg_catalog."C",
    runtime text NOT NULL COLLATE pg_catalog."C",
    native_call_id text NOT NULL COLLATE pg_catalog."C",
    n bigint NOT NULL,
    tool text NOT NULL,
    args_sha text NOT NULL,
    state text NOT NULL,
    attempt bigint NOT NULL,
    created_at bigint NOT NULL,
    deadline_at bigint NOT NULL,
    request_seq bigint NOT NULL,
    executor text,
    key text,
    due_at bigint,
    canceling_until bigint,
    outcome_seq bigint,
    outcome_sha text,
    unknown bigint NOT NULL,
    error text,
    redrive_of text,
    deliver bigint NOT NULL,
    finished_at bigint,
    dead bigint NOT NULL
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');
ALTER TABLE first_release.calls ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME first_release.calls_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE first_release.commits (
    token text NOT NULL COLLATE pg_catalog."C",
    fate text NOT NULL,
    asked bigint NOT NULL,
    at timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');
CREATE TABLE first_release.events (
    session_id text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    event_id text NOT NULL,
    kind text NOT NULL,
    direction text NOT NULL,
    dedupe_key text COLLATE pg_catalog."C",
    recorded_at bigint NOT NULL,
    body bytea,
    about bytea
);
CREATE TABLE first_release.holds (
    name text NOT NULL COLLATE pg_catalog."C",
    instance text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE first_release.idempotency (
    scope text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    request_sha text NOT NULL,
    response bytea NOT NULL,
    expires_at bigint NOT NULL
);
CREATE TABLE first_release.instances (
    instance text NOT NULL COLLATE pg_catalog."C",
    url text NOT NULL,
    expires_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');
CREATE TABLE first_release.interactions (
    id bigint NOT NULL,
    interaction_id text NOT NULL COLLATE pg_catalog."C",
    session_id text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL,
    state text NOT NULL,
    request_seq bigint NOT NULL,
    expires_at bigint,
    answered_by text
);
ALTER TABLE first_release.interactions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME first_release.interactions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE first_release.notes (
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL
);
CREATE TABLE first_release.outbound (
    session_id text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    target text NOT NULL COLLATE pg_catalog."C",
    lane text NOT NULL,
    state text NOT NULL,
    attempt bigint NOT NULL,
    due_at bigint,
    reason text,
    created_at bigint NOT NULL
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');
CREATE TABLE first_release.probe (
    id bigint NOT NULL,
    tried_at timestamp with time zone NOT NULL,
    CONSTRAINT probe_id_check CHECK ((id = 1))
);
CREATE TABLE first_release.schema_version (
    n bigint NOT NULL,
    at timestamp with time zone NOT NULL
);
CREATE TABLE first_release.sessions (
    id bigint NOT NULL,
    session_id text NOT NULL COLLATE pg_catalog."C",
    runtime text NOT NULL COLLATE pg_catalog."C",
    protocol text NOT NULL,
    native_id text NOT NULL COLLATE pg_catalog."C",
    state text NOT NULL,
    labels text NOT NULL,
    last_seq bigint NOT NULL,
    min_seq bigint NOT NULL,
    fence bigint NOT NULL,
    owner text COLLATE pg_catalog."C",
    size bigint NOT NULL,
    cursor text,
    opened_at bigint NOT NULL,
    updated_at bigint NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');
ALTER TABLE first_release.sessions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME first_release.sessions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE first_release.snapshots (
    session_id text NOT NULL COLLATE pg_catalog."C",
    snapshot bytea NOT NULL
);
INSERT INTO first_release.calls OVERRIDING SYSTEM VALUE VALUES (1, '48d25de7-6ef0-5862-b5bb-60a5af20cd91', 'afd1db03-3345-579c-a9fc-8dbf18d82656', 'finn', 'native-1', 0, 'ask', '998ee782cf2e7c8a0c9a3a8784cc4745', 'succeeded', 1, 1795340794624794, 1795340834599110, 3, 'cards', NULL, NULL, NULL, 4, '2023baac18f80b6b52b9ed97d3a539a5', 0, NULL, NULL, 1, 1795340794716228, 0);
INSERT INTO first_release.commits VALUES ('f0abbaaea2381f6915bef1cd-15', 'committed', 0, '2026-11-22 09:46:35.266172+00');
INSERT INTO first_release.commits VALUES ('f1607a4594a845441b8363d7-3', 'committed', 0, '2026-11-22 09:46:36.316432+00');
INSERT INTO first_release.events VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 1, '01M81ACXP1DCBG1M7FK92A62Y3', 'session.opened', 'to_runtime', NULL, 1795340793537481, '\x7b226b696e64223a2273657373696f6e2e6f70656e6564222c2272756e74696d65223a2266696e6e222c2270726f746f636f6c223a22706c61696e2f31222c226e61746976655f6964223a22726f6f6d2d37222c226c6162656c73223a7b7d2c226563686f6573223a66616c73652c2264656c656761746573223a66616c73657d', NULL);
INSERT INTO first_release.events VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 2, '01M81ACXVEAKSAY1TWKW73HM25', 'link.changed', 'from_runtime', NULL, 1795340793710338, '\x7b226b696e64223a226c696e6b2e6368616e676564222c227374617465223a227570222c22726561736f6e223a6e756c6c7d', NULL);
INSERT INTO first_release.events VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 3, '01M81ACYQ7AW4MEQXT4ES67Y1P', 'tool.requested', 'from_runtime', NULL, 1795340794599110, '\x7b226b696e64223a22746f6f6c2e726571756573746564222c226e61746976655f63616c6c5f6964223a226e61746976652d31222c22746f6f6c223a2261736b222c22617267756d656e7473223a7b2272616e6b223a2237227d2c2272756e735f696e223a22686f7374222c226e656564735f617070726f76616c223a66616c73652c2274686f75676874223a6e756c6c2c2270726576696577223a6e756c6c2c2273757065727365646573223a6e756c6c2c2270726f626c656d223a6e756c6c2c2263616c6c5f6964223a2234386432356465372d366566302d353836322d623562622d363061356166323063643931227d', '\x7b226f726967696e223a7b2261646170746572223a22706c61696e222c2270726f746f636f6c223a22706c61696e2f31222c226e61746976655f6964223a6e756c6c2c226e61746976655f73657175656e6365223a6e756c6c2c226e61746976655f74696d65223a6e756c6c2c22636f7272656c6174696f6e223a6e756c6c7d7d');
INSERT INTO first_release.events VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 4, '01M81ACYSG5KAVDK4N8XD237ZF', 'tool.finished', 'to_runtime', NULL, 1795340794672268, '\x7b226b696e64223a22746f6f6c2e66696e6973686564222c226e61746976655f63616c6c5f6964223a226e61746976652d31222c22746f6f6c223a2261736b222c226f7574636f6d65223a2273756363657373222c22726573756c74223a7b226361726473223a5b2237225d7d2c226572726f72223a6e756c6c2c2277616b65735f6167656e74223a747275652c22756e6b6e6f776e223a66616c73652c2263616c6c5f6964223a2234386432356465372d366566302d353836322d623562622d363061356166323063643931222c22636f6e74657874223a6e756c6c2c2275706461746573223a5b5d7d', '\x7b226361757365645f6279223a337d');
INSERT INTO first_release.events VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 5, '01M81ACYW01RNQMXAXDM2D3W1N', 'question.asked', 'from_runtime', NULL, 1795340794751982, '\x7b226b696e64223a227175657374696f6e2e61736b6564222c226964223a22712d31222c2274657874223a2277686963683f222c2263686f69636573223a5b2261222c2262225d7d', '\x7b226f726967696e223a7b2261646170746572223a22706c61696e222c2270726f746f636f6c223a22706c61696e2f31222c226e61746976655f6964223a6e756c6c2c226e61746976655f73657175656e6365223a6e756c6c2c226e61746976655f74696d65223a6e756c6c2c22636f7272656c6174696f6e223a6e756c6c7d7d');
INSERT INTO first_release.events VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 6, '01M81ACZ2J0M0XJDYN4NGBHKBQ', 'message.posted', 'from_runtime', NULL, 1795340794962684, '\x7b226b696e64223a226d6573736167652e706f73746564222c22617574686f72223a7b22726f6c65223a226167656e74222c226964223a6e756c6c2c226e616d65223a2246696e6e227d2c22636f6e74656e74223a5b7b2274797065223a2274657874222c2274657874223a2268656c6c6f227d5d2c226d6573736167655f6964223a6e756c6c2c2277616b65735f6167656e74223a747275652c22636f6d706c657465223a747275652c226275727374223a6e756c6c2c2265787472615f61726773223a6e756c6c2c22637265617465645f6174223a6e756c6c7d', '\x7b226f726967696e223a7b2261646170746572223a22706c61696e222c2270726f746f636f6c223a22706c61696e2f31222c226e61746976655f6964223a6e756c6c2c226e61746976655f73657175656e6365223a6e756c6c2c226e61746976655f74696d65223a6e756c6c2c22636f7272656c6174696f6e223a6e756c6c7d7d');
INSERT INTO first_release.events VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 7, '01M81ACZ6M0BS16D89CAPSEDXZ', 'message.posted', 'to_runtime', NULL, 1795340795092778, '\x7b226b696e64223a226d6573736167652e706f73746564222c22617574686f72223a7b22726f6c65223a2275736572222c226964223a6e756c6c2c226e616d65223a6e756c6c7d2c22636f6e74656e74223a5b7b2274797065223a2274657874222c2274657874223a226869227d5d2c226d6573736167655f6964223a6e756c6c2c2277616b65735f6167656e74223a747275652c22636f6d706c657465223a747275652c226275727374223a6e756c6c2c2265787472615f61726773223a6e756c6c2c22637265617465645f6174223a6e756c6c7d', NULL);
INSERT INTO first_release.events VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 8, 'kept-copy', 'message.posted', 'to_runtime', NULL, 1795340795963522, '\x7b226b696e64223a226d6573736167652e706f73746564222c22617574686f72223a7b22726f6c65223a2275736572222c226964223a6e756c6c2c226e616d65223a6e756c6c7d2c22636f6e74656e74223a5b7b2274797065223a2274657874222c2274657874223a22746f20626520636f70696564227d5d2c226d6573736167655f6964223a6e756c6c2c2277616b65735f6167656e74223a747275652c22636f6d706c657465223a747275652c226275727374223a6e756c6c2c2265787472615f61726773223a6e756c6c2c22637265617465645f6174223a6e756c6c7d', NULL);
INSERT INTO first_release.idempotency VALUES ('gateway', 'callback-key', '', '\x426d6279596f7370784b56494f5569697554354a4a544b78624f505f41786d7670582d614e6d5154653663', 253370764800000000);
INSERT INTO first_release.instances VALUES ('82d032b0-e4bd-491d-bdf3-f52179be5386', 'http://127.0.0.1', '2026-11-22 09:46:35.259858+00');
INSERT INTO first_release.interactions OVERRIDING SYSTEM VALUE VALUES (1, '83e986ca-4b86-5a39-a944-25ab35182663', 'afd1db03-3345-579c-a9fc-8dbf18d82656', 'question.asked', 'waiting', 5, 1795341094751982, NULL);
INSERT INTO first_release.notes VALUES ('kept', 'a note');
INSERT INTO first_release.outbound VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 4, 'runtime', 'turn', 'delivered', 0, NULL, NULL, 1795340794716228);
INSERT INTO first_release.outbound VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 7, 'runtime', 'new_work', 'delivered', 0, NULL, NULL, 1795340795112138);
INSERT INTO first_release.outbound VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 8, 'runtime', 'new_work', 'pending', 0, NULL, NULL, 1795340796109701);
INSERT INTO first_release.outbound VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', 8, 'destination:log', 'turn', 'dead', 3, NULL, 'gave up after 3', 1795340796109701);
INSERT INTO first_release.probe VALUES (1, '2026-11-22 09:46:34.620936+00');
INSERT INTO first_release.schema_version VALUES (1, '2026-11-22 09:46:32.97959+00');
INSERT INTO first_release.sessions OVERRIDING SYSTEM VALUE VALUES (1, 'afd1db03-3345-579c-a9fc-8dbf18d82656', 'finn', 'plain/1', 'room-7', 'starting', '{}', 8, 1, 1, NULL, 1789, NULL, 1795340793537544, 1795340796239528);
INSERT INTO first_release.snapshots VALUES ('afd1db03-3345-579c-a9fc-8dbf18d82656', '\x5b372c7b226c6162656c73223a7b7d2c226563686f6573223a66616c73652c2264656c656761746573223a66616c73652c22636c6f736564223a66616c73652c226c696e6b6564223a747275652c22636f6e74657874223a6e756c6c2c2268656c64223a5b5d2c22686973746f7279223a5b225b30393a34365d2046696e6e3a2068656c6c6f222c225b30393a34365d20757365723a206869225d2c22636f6e6669726d6174696f6e73223a5b5d2c22636f6e6669726d6564223a5b5d2c2272756e6e696e67223a66616c73652c227374617465223a2269646c65222c226e61746976655f7374617465223a6e756c6c2c226163746976655f6174223a22323032362d31312d32325430393a34363a33352e3039323737385a222c2271756965745f6174223a6e756c6c2c22656e6465645f6174223a302c2264656c65676174696e67223a302c2261736b6564223a5b7b226576656e74223a7b226b696e64223a227175657374696f6e2e61736b6564222c226964223a22712d31222c2274657874223a2277686963683f222c2263686f69636573223a5b2261222c2262225d7d2c226576656e745f6964223a2230314d3831414359573031524e514d584158444d32443357314e222c2273657175656e6365223a352c2261736b65645f6174223a22323032362d31312d32325430393a34363a33342e3735313938325a222c2273697a65223a3431377d5d2c2277616e746564223a7b7d2c22686f73746564223a7b7d2c22616374696f6e73223a5b5d2c22756e6563686f6564223a5b5d2c226f7264657273223a7b7d2c22726563656e74223a5b5d7d5d');
SELECT pg_catalog.setval('first_release.calls_id_seq', 1, true);
SELECT pg_catalog.setval('first_release.interactions_id_seq', 1, true);
SELECT pg_catalog.setval('first_release.sessions_id_seq', 1, true);
ALTER TABLE ONLY first_release.calls
    ADD CONSTRAINT calls_id_key UNIQUE (id);
ALTER TABLE ONLY first_release.calls
    ADD CONSTRAINT calls_pkey PRIMARY KEY (call_id);
ALTER TABLE ONLY first_release.commits
    ADD CONSTRAINT commits_pkey PRIMARY KEY (token);
ALTER TABLE ONLY first_release.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (session_id, seq);
ALTER TABLE ONLY first_release.holds
    ADD CONSTRAINT holds_pkey PRIMARY KEY (name);
ALTER TABLE ONLY first_release.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (scope, key);
ALTER TABLE ONLY first_release.instances
    ADD CONSTRAINT instances_pkey PRIMARY KEY (instance);
ALTER TABLE ONLY first_release.interactions
    ADD CONSTRAINT interactions_id_key UNIQUE (id);
ALTER TABLE ONLY first_release.interactions
    ADD CONSTRAINT interactions_pkey PRIMARY KEY (interaction_id);
ALTER TABLE ONLY first_release.notes
    ADD CONSTRAINT notes_pkey PRIMARY KEY (name);
ALTER TABLE ONLY first_release.outbound
    ADD CONSTRAINT outbound_pkey PRIMARY KEY (session_id, seq, target);
ALTER TABLE ONLY first_release.probe
    ADD CONSTRAINT probe_pkey PRIMARY KEY (id);
ALTER TABLE ONLY first_release.schema_version
    ADD CONSTRAINT schema_version_pkey PRIMARY KEY (n);
ALTER TABLE ONLY first_release.sessions
    ADD CONSTRAINT sessions_id_key UNIQUE (id);
ALTER TABLE ONLY first_release.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (session_id);
ALTER TABLE ONLY first_release.sessions
    ADD CONSTRAINT sessions_runtime_native_id_key UNIQUE (runtime, native_id);
ALTER TABLE ONLY first_release.snapshots
    ADD CONSTRAINT snapshots_pkey PRIMARY KEY (session_id);
CREATE INDEX calls_dead ON first_release.calls USING btree (id) WHERE (dead = 1);
CREATE INDEX calls_native ON first_release.calls USING btree (session_id, native_call_id, n) WHERE (redrive_of IS NULL);
CREATE INDEX calls_open ON first_release.calls USING btree (session_id, id) WHERE (state = ANY (ARRAY['queued'::text, 'dispatched'::text, 'accepted'::text]));
CREATE INDEX calls_unknown ON first_release.calls USING btree (id) WHERE (unknown = 1);
CREATE UNIQUE INDEX events_once ON first_release.events USING btree (session_id, direction, dedupe_key) WHERE (dedupe_key IS NOT NULL);
CREATE INDEX idempotency_expiry ON first_release.idempotency USING btree (expires_at);
CREATE INDEX interactions_of ON first_release.interactions USING btree (session_id, id);
CREATE INDEX interactions_waiting ON first_release.interactions USING btree (session_id) WHERE (state = 'waiting'::text);
CREATE INDEX outbound_dead ON first_release.outbound USING btree (created_at, session_id, seq, target) WHERE (state = ANY (ARRAY['refused'::text, 'unknown'::text, 'dead'::text]));
CREATE INDEX outbound_pending ON first_release.outbound USING btree (target, session_id, seq) WHERE (state = 'pending'::text);
CREATE INDEX sessions_owned ON first_release.sessions USING btree (owner, id) WHERE (state <> 'closed'::text);
