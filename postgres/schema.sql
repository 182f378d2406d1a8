-- Holdfast's tables, version 2. All of it may be repeated; version 1 becomes version 2.
--
-- Others may create functions, operators and types in the schema of the tables, or in
-- one that is ahead of it. So all that is called here, and by the functions below, is
-- looked up in pg_catalog alone, and every table is named with its schema.

begin isolation level read committed read write;
set local client_min_messages = warning;

do $holdfast$
declare
  home  pg_catalog.text := {home};
  part  pg_catalog.text;
  other pg_catalog.text;
begin
  set local search_path = pg_catalog, pg_temp;
  set local standard_conforming_strings = on;
  perform pg_advisory_xact_lock(5218421797312874); -- one at a time
  if home is null or home ~ '[''"]' then
    raise exception 'holdfast: name the schema of the tables: % is none', coalesce(home, 'the search_path');
  end if;
  if not exists (select from pg_namespace n where n.nspname = home) then
    execute format('create schema %I', home);
  end if;
  foreach part in array array[$tables$

create table if not exists {meta} (
  key   text   not null primary key,
  value bigint not null
);

-- A record that holds nothing keeps its row and its version. Half of each page
-- is left free, so that a row that changes stays on its page.
create table if not exists {records} (
  id      bytea  not null primary key,  -- \x00 lock, \x01 session, \x02 setting, \x03 audit, \x04 history; then the name
  version bigint not null,              -- microseconds since 1970, or one more than before
  prev    bigint not null default -1,   -- the version that the last statement asked for; -1: any that held nothing
  value   bytea  not null,              -- JSON, or empty
  fence   bigint not null default 0     -- highest token of a block seen by a fence
) with (fillfactor = 50);

$tables$, $functions$

do $$ begin
  if (select m.value from {meta} m where m.key = 'version') > 2 then
    raise exception 'holdfast: the schema is newer than this script';
  end if;
end $$;

-- A new row must have a version above all that were ever swept, and a row that
-- was swept does not come back by a write that follows one of its versions. This
-- looks once the row is in, so it sees each sweep that has removed it before,
-- however old the snapshot of the statement is.
create or replace function {inserted}() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform from {meta} m where m.key = 'floor' for share; -- fails if the floor has risen since
  end if;
  if new.prev > 0 or new.version <= (select m.value from {meta} m where m.key = 'floor') then
    raise exception using errcode = 'HF001', message = 'holdfast: the row was swept meanwhile';
  end if;
  return null;
end $$;

do $$ begin
  if not exists (select from pg_trigger t where t.tgrelid = '{records}'::regclass and t.tgname = 'holdfast_insert') then
    create trigger holdfast_insert after insert on {records} for each row execute function {inserted}();
  end if;
end $$;

-- Keys and sweeps walk the table in the order of ids, a page after the other. On
-- a big table the planner would now and then sort all of it for every page.
create or replace function {keys}(above bytea, below bytea, most integer) returns setof bytea
language plpgsql stable set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  return query select r.id from {records} r
    where r.id > above and r.id < below and length(r.value) > 0
    order by r.id limit most;
end $$;

create or replace function {idle}(above bytea, until bigint, most integer) returns table (id bytea, version bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  return query select r.id, r.version from {records} r
    where r.id > above and length(r.value) = 0 and r.version <= until
    order by r.id limit most;
end $$;

-- The view calls these for each row, so they name all in full instead of bringing a
-- search_path of their own, which costs ten times what they do.

-- A value as JSON; null if it is not. jsonb cannot have all that JSON can, so at
-- a second try what it refuses is left out. (What catches an error cannot run in
-- parallel.)
create or replace function {json}(value bytea) returns jsonb
language plpgsql immutable as $$
declare
  mark  constant pg_catalog.text := pg_catalog.chr(1); -- a backslash of the value
  plain pg_catalog.text;
begin
  if pg_catalog.length(value) {=} 0 then
    return null; -- with exit_on_error an error ends the session, though it is caught
  end if;
  return pg_catalog.convert_from(value, 'UTF8')::pg_catalog.jsonb;
exception when others then
  begin
    plain := pg_catalog.replace(pg_catalog.encode(value, 'escape'), E'\\\\', mark);
    plain := pg_catalog.regexp_replace(plain, E'\\\\[0-7]{3}', '?', 'g');
    plain := pg_catalog.regexp_replace(plain, mark {||} mark {||} '|' {||} mark {||} 'u[0-9a-f]{4}', '?', 'g');
    return pg_catalog.replace(plain, mark, E'\\')::pg_catalog.jsonb;
  exception when others then
    return null;
  end;
end $$;

-- A list of it; empty if it is none.
create or replace function {list}(value jsonb) returns jsonb
language plpgsql immutable parallel safe as $$
begin
  if pg_catalog.jsonb_typeof(value) {=} 'array' then
    return value;
  end if;
  return '[]';
end $$;

-- A number of it; null if it is none.
create or replace function {number}(value jsonb) returns bigint
language plpgsql immutable parallel safe as $$
begin
  if pg_catalog.jsonb_typeof(value) {=} 'number' and value::pg_catalog.text {~} '^-?[0-9]{1,18}$' then
    return value::bigint;
  end if;
  return null;
end $$;

-- A name as text.
create or replace function {text}(name bytea) returns text
language plpgsql immutable as $$
begin
  return pg_catalog.convert_from(name, 'UTF8');
exception when others then
  return pg_catalog.encode(name, 'escape');
end $$;

-- What strangers have written, fit for a terminal: characters that control it, that
-- turn the direction of text or are invisible are shown as \u202e. (Only of Unicode
-- and ISO 8859 it is known which those above 7f are.)
create or replace function {plain}(value text) returns text
language plpgsql immutable parallel safe as $$
declare
  odd pg_catalog.text := E'[\\u0001-\\u001f\\u007f]';
  c   pg_catalog.text;
begin
  if pg_catalog.getdatabaseencoding() {~} '^(UTF8|LATIN|ISO)' then
    odd := E'[\\u0001-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]';
  end if;
  if value {~} odd then
    for c in select distinct m[1] from pg_catalog.regexp_matches(value, odd, 'g') m loop
      value := pg_catalog.replace(value, c, E'\\u' {||} pg_catalog.lpad(pg_catalog.to_hex(pg_catalog.ascii(c)), 4, '0'));
    end loop;
  end if;
  return value;
end $$;

-- One row for each who holds a lock or waits for it. A column is never taken out of a view that
-- others may rest on, and new ones come last.
do $$ begin
  if exists (select from pg_attribute a where a.attrelid = to_regclass('{locks}') and a.attname = 'acquired') then
    alter table {locks} rename column acquired to granted;
  end if;
end $$;

create or replace view {locks} as
with
  locks as (
    select substr(r.id, 2) as name, r.version, {json}(r.value) as value
    from {records} r
    where r.id > '\x00' and r.id < '\x01' and length(r.value) > 0
  ),
  claims as (
    select l.name, 'held' as state, c.place, c.claim,
           coalesce(nullif({number}(c.claim->'token'), 0),
                    greatest(l.version, {number}(l.value->'next')) + coalesce({number}(c.claim->'off'), 0)) as token,
           nullif(greatest({number}(c.claim->'granted'), 0), 0) as granted
    from locks l, jsonb_array_elements({list}(l.value->'holders')) with ordinality c(claim, place)
    where jsonb_typeof(c.claim) = 'object'
    union all
    select l.name, 'waiting', c.place, c.claim, null, null
    from locks l, jsonb_array_elements({list}(l.value->'waiters')) with ordinality c(claim, place)
    where jsonb_typeof(c.claim) = 'object'
  ),
  sessions as (
    select r.id, r.version, r.value,
           coalesce(coalesce(r.value->'owner'->>'user' || '@', '') || (r.value->'owner'->>'host'), r.value->'owner'->>'user') as at
    from (select {text}(substr(r.id, 2)) as id, r.version, {json}(r.value) as value
          from {records} r
          where r.id > '\x01' and r.id < '\x02' and length(r.value) > 0) r
  )
select
  {plain}({text}(c.name)) as name,
  case coalesce({number}(c.claim->'slots'), 0)
    when 0 then 'shared'
    when 1 then 'exclusive'
    else 'slots ' || {number}(c.claim->'slots')
  end as mode,
  c.state,
  c.place as position,
  {plain}(coalesce(nullif(s.value->'owner'->>'name', ''), s.at, 'session ' || left(c.claim->>'session', 8))
          || coalesce(' (' || nullif(concat_ws(', ', case when s.value->'owner'->>'name' <> '' then s.at end,
                                               'pid ' || {number}(s.value->'owner'->'pid')), '') || ')', '')) as holder,
  {plain}(s.value->'owner'->>'host') as host,
  {number}(s.value->'owner'->'pid') as pid,
  {plain}(s.value->'owner'->>'user') as "user",
  {plain}(s.value->'owner'->>'program') as program,
  {plain}(c.claim->>'session') as session,
  {number}(c.claim->'nr') as nr,
  {plain}(c.claim->>'reason') as reason,
  c.token,
  c.token + coalesce(nullif({number}(c.claim->'n'), 0), 1) - 1 as last_token,
  to_timestamp(nullif(greatest({number}(c.claim->'since'), 0), 0) / 1e6) as requested,
  to_timestamp(coalesce(c.granted, c.token) / 1e6) as granted,
  greatest(coalesce(coalesce(c.granted, c.token) / 1e6, extract(epoch from clock_timestamp())::numeric)
           - {number}(c.claim->'since') / 1e6, 0)::double precision as waited,
  coalesce({number}(c.claim->'retries'), 0) as retries,
  (coalesce(nullif({number}(s.value->'ttl'), 0), {number}(c.claim->'ttl')) / 1e3)::double precision as ttl,
  to_timestamp((s.version - case when s.value->'suspected' is null then 0
                                 else coalesce({number}(s.value->'suspected'->'age'), 0) end) / 1e6) as last_beat,
  {plain}(s.value->'suspected'->>'by') as suspected_by,
  case when s.value->'suspected' is not null then to_timestamp(s.version / 1e6) end as suspected_since,
  coalesce({number}(s.value->'dead'), 0) <> 0 as dead,
  {plain}(nullif(s.value->'owner'->>'name', '')) as owner,
  {plain}(s.value->'owner'->>'address') as address,
  {plain}(s.value->'owner'->>'device') as device,
  {plain}(coalesce(s.value->'labels'->(c.claim->>'nr'), c.claim->'labels')::text) as labels
from claims c
left join sessions s on s.id = c.claim->>'session';

-- One row for each of the last holds of a name.
create or replace view {history} as
with holds as (
  select {text}(substr(r.id, 2)) as name, c.hold, c.hold->'owner' as owner, {number}(c.hold->'from') as granted, {number}(c.hold->'to') as ended,
         coalesce(coalesce(c.hold->'owner'->>'user' || '@', '') || (c.hold->'owner'->>'host'), c.hold->'owner'->>'user') as at
  from {records} r, jsonb_array_elements({list}({json}(r.value)->'holds')) c(hold)
  where r.id > '\x04' and r.id < '\x05' and length(r.value) > 0 and jsonb_typeof(c.hold) = 'object'
)
select
  {plain}(h.name) as name,
  {number}(h.hold->'token') as token,
  {plain}(coalesce(nullif(h.owner->>'name', ''), h.at)
          || coalesce(' (' || nullif(concat_ws(', ', case when h.owner->>'name' <> '' then h.at end, 'pid ' || {number}(h.owner->'pid')), '') || ')', '')) as holder,
  {plain}(h.owner->>'host') as host,
  {number}(h.owner->'pid') as pid,
  {plain}(h.owner->>'user') as "user",
  {plain}(h.owner->>'program') as program,
  {plain}(nullif(h.owner->>'name', '')) as owner,
  {plain}(h.hold->>'reason') as reason,
  to_timestamp(h.granted / 1e6) as granted,
  to_timestamp(h.ended / 1e6) as ended,
  (greatest(h.ended - h.granted, 0) / 1e6)::double precision * case when h.granted is not null then 1 end as held,
  (coalesce({number}(h.hold->'waited'), 0) / 1e6)::double precision as waited,
  {plain}(h.hold->>'end') as how,
  {plain}(coalesce(nullif(h.hold->'by'->>'name', ''), coalesce(h.hold->'by'->>'user' || '@', '') || (h.hold->'by'->>'host'))) as ended_by,
  {plain}(h.hold->>'why') as why
from holds h;

-- The fence for all who speak SQL, as the last statement before COMMIT:
--   select holdfast_fence('orders/42', 1795226403001234);
-- fails unless the token still holds the lock, and keeps the lock from being
-- taken over until the transaction has ended. A transaction that then is left
-- idle for longer than the TTL is ended by the server.
--   HF002 the token does not hold it   HF003 there is no such lock   HF004 there is no transaction
create or replace function {fence}(name bytea, token bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  key    constant bytea := decode('00', 'hex') || $1;
  r      record;
  value  jsonb;
  claim  jsonb;
  alone  boolean; -- its holder is exclusive
  first  bigint;  -- its tokens
  last   bigint;
  ttl    bigint;
  idle   bigint;
  strong boolean; -- the lock of the row; shared holders do not wait for each other
  stack  text;
begin
  -- Where each statement commits by itself nothing stays locked. It is certain only of one
  -- that came alone by the simple protocol, as from psql, and was not called by a function.
  if now() = statement_timestamp() and txid_current_if_assigned() is null and current_query() !~ E';\\s*\\S' then
    get diagnostics stack = pg_context;
    if stack ~ E'^[^\n]*(\n[^\n]*\n[^\n]*fence"?\\(text,bigint\\)[^\n]*)?$' then
      raise exception using errcode = 'HF004',
        message = 'there is no transaction that could be fenced: begin one, write, and call this last';
    end if;
  end if;
  select c.version, c.value, c.ctid, c.xmax, c.tableoid into r from {records} c where c.id = key;
  value := {json}(r.value);
  strong := {list}(value->'holders') @> '[{"slots": 1}]';
  if not strong and r.xmax <> '0'::xid then -- others have locked it, or still do
    -- Who waits to write the row comes first: by PostgreSQL's rules readers that
    -- follow each other closely would keep it waiting for ever.
    strong := exists (
      select from pg_locks l
      where l.locktype = 'tuple' and l.relation = r.tableoid and '(' || l.page || ',' || l.tuple || ')' = r.ctid::text
        and l.database = (select d.oid from pg_database d where d.datname = current_database()));
  end if;
  loop
    if strong then
      select c.version, c.value, c.fence into r from {records} c where c.id = key for no key update;
    else
      select c.version, c.value, c.fence into r from {records} c where c.id = key for share;
    end if;
    if not found then
      raise exception using errcode = 'HF003',
        message = format('no such lock in this database: "%s"; was it taken through another store?', {text}($1));
    end if;
    value := {json}(r.value);
    for claim in select h from jsonb_array_elements({list}(value->'holders')) h loop
      first := coalesce(nullif({number}(claim->'token'), 0),
                        greatest(r.version, {number}(value->'next')) + coalesce({number}(claim->'off'), 0));
      last := first + coalesce(nullif({number}(claim->'n'), 0), 1) - 1;
      exit when $2 between first and last and jsonb_typeof(claim) = 'object';
      claim := null;
    end loop;
    alone := {number}(claim->'slots') is not distinct from 1;
    exit when strong or not alone;
    strong := true; -- it changed hands between the two looks
  end loop;
  -- Of an exclusive claim with many tokens only one may write at a time, and
  -- none behind a newer one.
  if claim is null or alone and last > first and $2 < r.fence then
    raise exception using errcode = 'HF002',
      message = format('token %s no longer holds "%s"; roll back', $2, {text}($1));
  end if;
  if alone and last > first and $2 > r.fence then
    update {records} c set fence = $2 where c.id = key;
  end if;
  -- A frozen process must not keep the lock from others for ever.
  ttl := least(coalesce(nullif({number}(claim->'ttl'), 0), 15000), 2147483647);
  idle := 1000 * extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval);
  if idle = 0 or idle > ttl then
    perform set_config('idle_in_transaction_session_timeout', ttl::text, true);
  end if;
end $$;

create or replace function {fence}(name text, token bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform {fence}(convert_to($1, 'UTF8'), $2);
end $$;

-- It runs with the rights of the owner of the tables: who fences needs no other
-- right on them than to call it. Grant that to those who shall have it.
revoke all on function {fence}(text, bigint), {fence}(bytea, bigint) from public;

$functions$, $version$

insert into {meta} (key, value) values ('version', 2), ('floor', 0) on conflict do nothing;
update {meta} set value = 2 where key = 'version' and value < 2;

$version$] loop
    execute replace(part, '"@"', '"' || home || '"');
    -- Whoever may create in the schema may have been first with something of that name.
    select o.name || ' belongs to ' || pg_get_userbyid(o.owner) into other
    from (
      select c.relname::text, c.relowner, c.relnamespace from pg_class c where c.relname ~ '^{prefix}(meta|records|locks|history)$'
      union all
      select p.proname || '(' || oidvectortypes(p.proargtypes) || ')', p.proowner, p.pronamespace from pg_proc p
      where p.proname ~ '^{prefix}(inserted|keys|idle|json|list|number|text|plain|fence)$'
    ) o (name, owner, space)
    where o.space = (select n.oid from pg_namespace n where n.nspname = home) and pg_get_userbyid(o.owner) <> current_user
    limit 1;
    if found then
      raise exception 'holdfast: %, not to %: drop it, or run this as its owner', other, current_user;
    end if;
  end loop;
end $holdfast$;

commit;
