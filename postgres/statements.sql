-- The statements of a store. {records} is the table of that name, {=} is PostgreSQL's own
-- operator, and {{clock}} is the text named so, above.
--
-- Statements that change a record evaluate the settings first, before any row is locked:
-- how long to wait for a locked row, and whether to wait for the disk. Those hold for this
-- transaction, which is the statement.
--
-- They run on the caller's connections, where others may have functions and operators of
-- any name ahead of PostgreSQL's own. So they name all in full. There are no joins: a role
-- that is denied nested loops would have each statement compiled for its cost (jit), which
-- takes a hundred times as long as to run it.

--- clock
(extract(epoch from pg_catalog.clock_timestamp())::numeric {*} 1000000::numeric)::bigint

--- above the floor
greatest({{clock}}, (select m.value {+} 1 from {meta} m where m.key {=} 'floor'))

-- $3: it need not wait for the disk.
--- commit
case when $3::boolean then pg_catalog.set_config('synchronous_commit', 'off', true)
		when pg_catalog.current_setting('synchronous_commit') {=} 'off' then pg_catalog.set_config('synchronous_commit', 'on', true)
		else '' end is not null

-- $4: how long it waits, in milliseconds.
--- settings
pg_catalog.set_config('lock_timeout', $4::pg_catalog.text, true) is not null
	and {{commit}}

-- $6: the payload; $7: the channels. A write that sends no notification has null here and no such
-- parameters.
--- notify
(select pg_catalog.count(pg_catalog.pg_notify(c, $6)) from pg_catalog.unnest($7::pg_catalog.text[]) c)

-- The clock comes as a row of its own, for there may be no other.
--- load
select null::pg_catalog.bytea, null::bigint, null::pg_catalog.bytea, {{clock}}, pg_catalog.pg_is_in_recovery()
union all
select r.id, r.version, r.value, 0, false from {records} r where r.id {=} $1

-- On the connection that listens. pg_stat_activity shows it by the comment.
--- told
/* listens */ select r.version, r.value from {records} r where r.id {=} $1::pg_catalog.bytea

--- load all
select null::pg_catalog.bytea, null::bigint, null::pg_catalog.bytea, {{clock}}, pg_catalog.pg_is_in_recovery()
union all
select r.id, r.version, r.value, 0, false from {records} r where r.id {=} any ($1::pg_catalog.bytea[])

-- Both ends are in one space.
--- load range
select null::pg_catalog.bytea, null::bigint, null::pg_catalog.bytea, {{clock}}, pg_catalog.pg_is_in_recovery()
union all
(select r.id, r.version, r.value, 0, false from {records} r where r.id {>=} $1 and r.id {<=} $2 limit $3)

-- The version is the clock, or above the floor.
--- insert
insert into {records} as r (id, version, prev, value)
select $1::pg_catalog.bytea, {{version}}, $5::bigint, $2::pg_catalog.bytea where {{settings}}
on conflict (id) do update set version = greatest(r.version {+} 1, excluded.version), prev = -1, value = excluded.value
where pg_catalog.length(r.value) {=} 0
returning version, {{notify}}

-- What insert is to a row that is there.
--- take
update {records} set version = greatest(version {+} 1, {{clock}}), prev = $5::bigint, value = $2::pg_catalog.bytea
where id {=} $1::pg_catalog.bytea and pg_catalog.length(value) {=} 0 and {{settings}}
returning version, {{notify}}

--- update
update {records} set version = greatest(version {+} 1, {{clock}}), prev = version, value = $2::pg_catalog.bytea
where id {=} $1::pg_catalog.bytea and version {=} $5::bigint and {{settings}}
returning version, {{notify}}

-- It returns to a loser what the statement has seen.
--- swap
with won as (
{{update}})
select coalesce((select w.version from won w), 0), r.version, case when (select w.version from won w) is null then r.value end, {{clock}}
from {records} r where r.id {=} $1

-- $5: the keys whose writes notify; $6: their payloads; $7: the channel of all; $8: one more for each.
--- notify each
case when id {=} any ((select $5::pg_catalog.bytea[])::pg_catalog.bytea[]) then (
	select pg_catalog.count(pg_catalog.pg_notify(c, ($6::pg_catalog.text[])[pg_catalog.array_position($5, id)]))
	from pg_catalog.unnest(array[$7::pg_catalog.text, ($8::pg_catalog.text[])[pg_catalog.array_position($5, id)]]) c) end

-- In one batch a key whose rows are rare may be new, or not. The settings are for all rows at once.
--- swaps
insert into {records} as r (id, version, prev, value)
select w.id, (select {{version}}), w.old, w.value
from rows from (pg_catalog.unnest((select $1::pg_catalog.bytea[])), pg_catalog.unnest((select $4::bigint[])),
	pg_catalog.unnest((select $2::pg_catalog.bytea[]))) w (id, old, value)
where (w.old {=} -1 or (select c.version from {records} c where c.id {=} w.id) {=} w.old)
	and (select pg_catalog.set_config('lock_timeout', '250', true)) is not null
	and (select {{commit}})
order by w.id
on conflict (id) do update set version = greatest(r.version {+} 1, excluded.version), prev = excluded.prev, value = excluded.value
where r.version {=} excluded.prev or (excluded.prev {=} -1 and pg_catalog.length(r.value) {=} 0)
returning id, version, {{notify each}}

--- keys
select k from {keys}($1::pg_catalog.bytea, $2::pg_catalog.bytea, $3::int) k

--- idle
select k.id, k.version from {idle}($1::pg_catalog.bytea, {{clock}} {-} $2::bigint, $3::int) k

-- Rows that others have locked are left to the next sweep.
--- remove
with raised as (
	update {meta} set value = greatest(value, $2) where key {=} 'floor' and pg_catalog.set_config('synchronous_commit', 'off', true) is not null
)
delete from {records} where ctid {=} any (array(
	select r.ctid from {records} r
	where r.id {=} any ($1::pg_catalog.bytea[]) and pg_catalog.length(r.value) {=} 0 and r.version {<=} $2::bigint
	for update skip locked))

-- The first schema of the search_path that has the tables, or null.
--- first
(
	select n.nspname::pg_catalog.text from pg_catalog.unnest(pg_catalog.current_schemas(false)) with ordinality s (name, nr)
	join pg_catalog.pg_namespace n on n.nspname {=} s.name
	join pg_catalog.pg_class c on c.relnamespace {=} n.oid and c.relname {=} '{prefix}records'
	order by s.nr limit 1)

-- What is known of a database, as one object of texts.
--- facts
select pg_catalog.json_object(array[
	'number', pg_catalog.current_setting('server_version_num'),
	'version', pg_catalog.current_setting('server_version'),
	'product', pg_catalog.version(),
	'standby', pg_catalog.pg_is_in_recovery()::pg_catalog.text,
	'read_only', pg_catalog.current_setting('transaction_read_only'),
	'fsync', pg_catalog.current_setting('fsync'),
	'full_page_writes', pg_catalog.current_setting('full_page_writes'),
	'synchronous_commit', pg_catalog.current_setting('synchronous_commit'),
	'synchronous_standby_names', pg_catalog.current_setting('synchronous_standby_names'),
	'session_replication_role', pg_catalog.current_setting('session_replication_role'),
	'pid', pg_catalog.pg_backend_pid()::pg_catalog.text,
	'schema', coalesce((select m.value from {meta} m where m.key {=} 'version'), 0)::pg_catalog.text,
	'may', (pg_catalog.has_table_privilege(c.oid, 'select') and pg_catalog.has_table_privilege(c.oid, 'insert')
		and pg_catalog.has_table_privilege(c.oid, 'update') and pg_catalog.has_table_privilege(c.oid, 'delete')
		and pg_catalog.has_table_privilege('{meta}', 'update'))::pg_catalog.text,
	'owns', pg_catalog.pg_has_role(c.relowner, 'usage')::pg_catalog.text,
	'open', pg_catalog.has_schema_privilege('public', c.relnamespace, 'create')::pg_catalog.text,
	'hidden', (c.relforcerowsecurity or pg_catalog.row_security_active(c.oid) or pg_catalog.row_security_active('{meta}'))::pg_catalog.text
])::pg_catalog.text
from pg_catalog.pg_class c where c.oid {=} '{records}'::pg_catalog.regclass

-- Standbys that a failover may go to, and that lag.
--- replicas
select application_name from pg_catalog.pg_stat_replication
where sync_state {=} 'async' and state {=} 'streaming' order by 1

-- Whether names in the schema may be looked up, if it has a name; else it is that which the
-- search_path finds. $schema is quoted.
--- grant usage
grant usage on schema $schema to $role;

-- What a role needs that takes locks, fences and sweeps.
--- grants
grant select, insert, update, delete on {records} to $role;
grant select, update on {meta} to $role;
grant execute on function {fence}(text, bigint), {fence}(bytea, bigint) to $role;

-- What a role needs that looks.
--- grants to look
grant select on {records}, {meta}, {locks}, {history} to $role;

-- Transactions that keep locks until somebody commits them or rolls them back.
--- prepared
select p.gid, p.owner::pg_catalog.text, extract(epoch from pg_catalog.clock_timestamp() {-} p.prepared)::double precision
from pg_catalog.pg_prepared_xacts p
join pg_catalog.pg_locks x on x.locktype {=} 'transactionid' and x.transactionid {=} p.transaction and x.pid is null
join pg_catalog.pg_locks l on l.virtualtransaction {=} x.virtualtransaction and l.pid is null
where l.relation {=} '{records}'::pg_catalog.regclass::pg_catalog.oid and l.mode {=} any (array['RowShareLock', 'RowExclusiveLock'])
	and p.database {=} pg_catalog.current_database()
order by p.prepared

-- The objects of a schema, where search_path is pg_catalog: names, and what they are.
-- $1: the schema, $2: tables and view, $3: functions.
--- objects
with
  home as (select n.oid from pg_namespace n where n.nspname = $1),
  relations as (
    select c.oid, c.relname as name, c.relkind, c.relowner as owner
    from pg_class c join home h on h.oid = c.relnamespace where c.relname = any ($2::text[])),
  functions as (
    select p.oid, p.proname || '(' || oidvectortypes(p.proargtypes) || ')' as name, p.proowner as owner,
      concat_ws(' ', 'language ' || l.lanname, case p.provolatile when 'i' then 'immutable' when 's' then 'stable' end,
        case when p.proparallel = 's' then 'parallel safe' end, case when p.prosecdef then 'security definer' end,
        (select string_agg('set ' || replace(s, '=', ' = '), ' ') from unnest(p.proconfig) s)) || p.prosrc as is
    from pg_proc p join home h on h.oid = p.pronamespace join pg_language l on l.oid = p.prolang where p.proname = any ($3::text[]))
select r.name, r.relkind::text from relations r
union all
select r.name || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || case when a.attnotnull then ' not null' else '' end
from relations r join pg_attribute a on a.attrelid = r.oid where a.attnum > 0 and not a.attisdropped
union all
select r.name || '!', 'primary key' from relations r join pg_index i on i.indrelid = r.oid where i.indisprimary
union all
select r.name || '!' || g.tgname, g.tgenabled::text || ' ' || f.name
from relations r join pg_trigger g on g.tgrelid = r.oid join functions f on f.oid = g.tgfoid where not g.tgisinternal
union all
select f.name, f.is from functions f
union all
select 'owner of ' || o.name, pg_get_userbyid(o.owner)
from (select name, owner from relations union all select name, owner from functions) o
where o.owner <> (select r.owner from relations r where r.name = $2[1])
union all
select r.name || ' calls', pg_describe_object(d.refclassid, d.refobjid, 0)
from relations r join pg_rewrite w on w.ev_class = r.oid join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid
where exists (select from pg_proc p where d.refclassid = 'pg_proc'::regclass and p.oid = d.refobjid
    and p.pronamespace <> 'pg_catalog'::regnamespace and p.oid not in (select f.oid from functions f))
  or exists (select from pg_operator p where d.refclassid = 'pg_operator'::regclass and p.oid = d.refobjid
    and p.oprnamespace <> 'pg_catalog'::regnamespace)

-- The objects but functions, as "objects" returns them.
--- published
meta = r
meta! = primary key
meta key = text not null
meta value = bigint not null
records = r
records! = primary key
records!holdfast_insert = O {prefix}inserted()
records id value = bytea not null
records version prev fence = bigint not null
locks = v
locks name mode state holder host user program session reason suspected_by owner address device labels = text
locks position pid nr token last_token retries = bigint
locks requested granted last_beat suspected_since = timestamp with time zone
locks waited ttl = double precision
locks dead = boolean
history = v
history name holder host user program owner reason how ended_by why = text
history token pid = bigint
history granted ended = timestamp with time zone
history held waited = double precision
