-- Holdfast's tables, version 1. Every statement may be repeated.

create table if not exists holdfast_meta (
  key   text    not null primary key,
  value integer not null
) without rowid;

-- Keys are bytes. A record that holds nothing keeps its row and its version.
create table if not exists holdfast_records (
  space   integer not null,           -- 0 lock, 1 session, 2 setting, 3 audit, 4 history
  name    blob    not null,
  version integer not null,           -- microseconds since 1970, or one more than before
  value   blob    not null,           -- JSON, or empty
  fence   integer not null default 0, -- highest token of a block seen by a fence
  primary key (space, name)
) without rowid;

-- One row for each who holds a lock or waits for it. It is made anew, so that an older one goes.
drop view if exists holdfast_locks;
create view holdfast_locks as
with
  locks as (
    select name, version, cast(value as text) as value
    from holdfast_records
    where space = 0 and json_valid(cast(value as text))
  ),
  claims as (
    select l.name, 'held' as state, c.key as place, c.value as claim,
           coalesce(json_extract(c.value, '$.token'),
                    max(l.version, coalesce(json_extract(l.value, '$.next'), 0)))
           + coalesce(json_extract(c.value, '$.off'), 0) as token,
           json_extract(c.value, '$.granted') as granted
    from locks l, json_each(l.value, '$.holders') c
    where c.type = 'object'
    union all
    select l.name, 'waiting', c.key, c.value, null, null
    from locks l, json_each(l.value, '$.waiters') c
    where c.type = 'object'
  ),
  sessions as (
    select id, version, value, json_extract(value, '$.owner.name') as owner, json_extract(value, '$.owner.pid') as pid,
           coalesce(coalesce(json_extract(value, '$.owner.user') || '@', '') || json_extract(value, '$.owner.host'),
                    json_extract(value, '$.owner.user')) as at
    from (
      select cast(name as text) as id, version, cast(value as text) as value
      from holdfast_records
      where space = 1 and json_valid(cast(value as text))
    )
  )
select
  cast(c.name as text) as name,
  case coalesce(json_extract(c.claim, '$.slots'), 0)
    when 0 then 'shared'
    when 1 then 'exclusive'
    else 'slots ' || json_extract(c.claim, '$.slots')
  end as mode,
  c.state as state,
  c.place + 1 as position,
  coalesce(s.owner, s.at, 'session ' || substr(json_extract(c.claim, '$.session'), 1, 8))
    || case when s.owner is not null and s.at is not null and s.pid is not null then ' (' || s.at || ', pid ' || s.pid || ')'
            when s.owner is not null and s.at is not null then ' (' || s.at || ')'
            when s.pid is not null then ' (pid ' || s.pid || ')'
            else '' end as holder,
  json_extract(s.value, '$.owner.host') as host,
  s.pid as pid,
  json_extract(s.value, '$.owner.user') as user,
  json_extract(s.value, '$.owner.program') as program,
  json_extract(c.claim, '$.session') as session,
  json_extract(c.claim, '$.nr') as nr,
  json_extract(c.claim, '$.reason') as reason,
  c.token as token,
  case when c.token is not null then c.token + coalesce(json_extract(c.claim, '$.n'), 1) - 1 end as last_token,
  strftime('%Y-%m-%dT%H:%M:%fZ', json_extract(c.claim, '$.since') / 1e6, 'unixepoch') as requested,
  strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(c.granted, c.token) / 1e6, 'unixepoch') as granted,
  max(coalesce(coalesce(c.granted, c.token) / 1e6, (julianday('now') - 2440587.5) * 86400.0)
      - json_extract(c.claim, '$.since') / 1e6, 0.0) as waited,
  coalesce(json_extract(c.claim, '$.retries'), 0) as retries,
  coalesce(json_extract(s.value, '$.ttl'), json_extract(c.claim, '$.ttl')) / 1000.0 as ttl,
  strftime('%Y-%m-%dT%H:%M:%fZ', (s.version - coalesce(json_extract(s.value, '$.suspected.age'), 0)) / 1e6, 'unixepoch') as last_beat,
  json_extract(s.value, '$.suspected.by') as suspected_by,
  case when json_extract(s.value, '$.suspected') is not null
       then strftime('%Y-%m-%dT%H:%M:%fZ', s.version / 1e6, 'unixepoch') end as suspected_since,
  json_extract(s.value, '$.dead') is not null as dead,
  s.owner as owner,
  json_extract(s.value, '$.owner.address') as address,
  json_extract(s.value, '$.owner.device') as device,
  coalesce(json_extract(s.value, '$.labels."' || json_extract(c.claim, '$.nr') || '"'), json_extract(c.claim, '$.labels')) as labels
from claims c
left join sessions s on s.id = json_extract(c.claim, '$.session');

-- One row for each of the last holds of a name.
drop view if exists holdfast_history;
create view holdfast_history as
select
  h.name,
  json_extract(h.hold, '$.token') as token,
  coalesce(h.owner, h.at)
    || case when h.owner is not null and h.at is not null and h.pid is not null then ' (' || h.at || ', pid ' || h.pid || ')'
            when h.owner is not null and h.at is not null then ' (' || h.at || ')'
            when h.pid is not null then ' (pid ' || h.pid || ')'
            else '' end as holder,
  json_extract(h.hold, '$.owner.host') as host,
  h.pid,
  json_extract(h.hold, '$.owner.user') as user,
  json_extract(h.hold, '$.owner.program') as program,
  h.owner,
  json_extract(h.hold, '$.reason') as reason,
  strftime('%Y-%m-%dT%H:%M:%fZ', json_extract(h.hold, '$.from') / 1e6, 'unixepoch') as granted,
  strftime('%Y-%m-%dT%H:%M:%fZ', json_extract(h.hold, '$.to') / 1e6, 'unixepoch') as ended,
  max((json_extract(h.hold, '$.to') - json_extract(h.hold, '$.from')) / 1e6, 0.0) as held,
  coalesce(json_extract(h.hold, '$.waited'), 0) / 1e6 as waited,
  json_extract(h.hold, '$.end') as how,
  coalesce(json_extract(h.hold, '$.by.name'), json_extract(h.hold, '$.by.user') || '@' || json_extract(h.hold, '$.by.host'),
           json_extract(h.hold, '$.by.host')) as ended_by,
  json_extract(h.hold, '$.why') as why
from (
  select cast(r.name as text) as name, c.value as hold, json_extract(c.value, '$.owner.name') as owner, json_extract(c.value, '$.owner.pid') as pid,
         coalesce(json_extract(c.value, '$.owner.user') || '@', '') || json_extract(c.value, '$.owner.host') as at
  from holdfast_records r, json_each(
    case when json_valid(cast(r.value as text)) then cast(r.value as text) else '{}' end, '$.holds') c
  where r.space = 4 and c.type = 'object'
) h;

-- The fence for those who speak only SQL. As the last statement before COMMIT:
--   insert into holdfast_fence (name, token) values ('orders/42', 1795226403001234)
-- rolls the transaction back with an error unless the token still holds the lock,
-- and keeps the lock from being taken over until the transaction has ended.
create view if not exists holdfast_fence as
select name, token, last_token, mode from holdfast_locks where state = 'held';

create trigger if not exists holdfast_fence_insert instead of insert on holdfast_fence
begin
  select raise(rollback, 'holdfast: no such lock in this database; was it taken through another store?')
  where not exists (
    select 1 from holdfast_records where space = 0 and name = cast(new.name as blob)
  );
  select raise(rollback, 'holdfast: this token no longer holds the lock; rolled back')
  where not exists (
    select 1
    from holdfast_records r, json_each(
      case when json_valid(cast(r.value as text)) then cast(r.value as text) else '{}' end, '$.holders') c
    where r.space = 0 and r.name = cast(new.name as blob) and c.type = 'object'
      and new.token - coalesce(json_extract(c.value, '$.off'), 0)
          - coalesce(json_extract(c.value, '$.token'),
                     max(r.version, coalesce(json_extract(cast(r.value as text), '$.next'), 0)))
          between 0 and coalesce(json_extract(c.value, '$.n'), 1) - 1
      and (coalesce(json_extract(c.value, '$.slots'), 0) <> 1
           or coalesce(json_extract(c.value, '$.n'), 1) <= 1
           or new.token >= r.fence)
  );
  -- Only one token of a block may write at a time; the fence remembers how far it got.
  update holdfast_records
  set fence = case
    when exists (
      select 1 from json_each(cast(holdfast_records.value as text), '$.holders') c
      where c.type = 'object' and json_extract(c.value, '$.slots') = 1 and json_extract(c.value, '$.n') > 1
    ) then max(fence, new.token)
    else fence
  end
  where space = 0 and name = cast(new.name as blob);
end;

insert or ignore into holdfast_meta (key, value) values ('version', 1);
insert or ignore into holdfast_meta (key, value) values ('floor', 0);
