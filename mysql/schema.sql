-- Holdfast's tables, version 1. Every statement may be repeated.

-- What is written here shall mean the same whatever the session has set.
set @holdfast_sql_mode = @@session.sql_mode, session sql_mode = '';

create table if not exists {meta} (
  `key` varchar(20) not null primary key,
  value bigint      not null
) engine=InnoDB default charset=ascii;

-- A record that holds nothing keeps its row and its version.
create table if not exists {records} (
  id      varbinary(1025) not null primary key, -- 0x00 lock, 0x01 session, 0x02 setting, 0x03 audit, 0x04 history; then the name
  version bigint         not null,             -- microseconds since 1970, or one more than before; 0: never written
  value   mediumblob     not null,             -- JSON, or empty
  fence   bigint         not null default 0,   -- highest token of a block seen by a fence
  attempt binary(16)     not null default ''   -- of the last batch that wrote it
) engine=InnoDB row_format=dynamic;

-- Names once had at most 255 bytes. An older table is widened where it is.
set @holdfast_widen = if((
  select character_maximum_length from information_schema.columns
  where table_schema = database() and table_name = replace('{records}', '`', '') and column_name = 'id') < 1025,
  'alter table {records} modify id varbinary(1025) not null, row_format=dynamic', 'do 0');
prepare holdfast_widen from @holdfast_widen;
execute holdfast_widen;
deallocate prepare holdfast_widen;

-- One row for each who holds a lock or waits for it. Times are in the time zone
-- of the session that looks. In what others have written, control characters and
-- those that turn or hide a text are written out, as \u202e.
create or replace view {locks} as
with
  locks as (
    select substr(id, 2) as name, version,
           if(json_valid(convert(value using utf8mb4)), convert(value using utf8mb4), '[]') as value
    from {records}
    where id > x'00' and id < x'01' and value <> ''
  ),
  claims as (
    select l.name, 'held' as state, c.place, c.session, c.nr, c.slots, c.n, c.ttl, c.since, c.reason, c.retries,
           json_extract(l.value, concat('$.holders[', c.place - 1, '].labels')) as labels, nullif(greatest(c.granted, 0), 0) as granted,
           coalesce(nullif(c.token, 0),
                    greatest(l.version, coalesce(cast(json_value(l.value, '$.next') as decimal(20)), 0)) + coalesce(c.off, 0)) as token
    from locks l join json_table(l.value, '$.holders[*]' columns (
      place for ordinality, session varchar(64) character set utf8mb4 path '$.session', nr bigint path '$.nr', slots bigint path '$.slots',
      token decimal(20) path '$.token', off decimal(20) path '$.off', n decimal(20) path '$.n', ttl bigint path '$.ttl',
      since decimal(20) path '$.since', granted decimal(20) path '$.granted',
      reason text character set utf8mb4 path '$.reason', retries bigint path '$.retries')) c
    union all
    select l.name, 'waiting', c.place, c.session, c.nr, c.slots, c.n, c.ttl, c.since, c.reason, c.retries,
           json_extract(l.value, concat('$.waiters[', c.place - 1, '].labels')), null, null
    from locks l join json_table(l.value, '$.waiters[*]' columns (
      place for ordinality, session varchar(64) character set utf8mb4 path '$.session', nr bigint path '$.nr', slots bigint path '$.slots',
      n decimal(20) path '$.n', ttl bigint path '$.ttl',
      since decimal(20) path '$.since', reason text character set utf8mb4 path '$.reason', retries bigint path '$.retries')) c
  ),
  sessions as (
    select id, version, value, json_value(value, '$.owner.name') as owner,
           coalesce(concat(coalesce(concat(json_value(value, '$.owner.user'), '@'), ''), json_value(value, '$.owner.host')),
                    json_value(value, '$.owner.user')) as at
    from (
      select id, version, if(json_valid(convert(value using utf8mb4)), convert(value using utf8mb4), null) as value
      from {records}
      where id > x'01' and id < x'02'
    ) r
  )
select
  {shown c.name} as name,
  {text case coalesce(c.slots, 0) when 0 then 'shared' when 1 then 'exclusive' else concat('slots ', c.slots) end} as mode,
  {text c.state} as state,
  c.place as position,
  {shown concat(
    coalesce(s.owner, s.at, concat('session ', left(c.session, 8))),
    coalesce(concat(' (', nullif(concat_ws(', ', if(s.owner is null, null, s.at), concat('pid ', json_value(s.value, '$.owner.pid'))), ''), ')'), ''))} as holder,
  {shown json_value(s.value, '$.owner.host')} as host,
  cast(json_value(s.value, '$.owner.pid') as signed) as pid,
  {shown json_value(s.value, '$.owner.user')} as `user`,
  {shown json_value(s.value, '$.owner.program')} as program,
  {shown c.session} as session,
  c.nr as nr,
  {shown c.reason} as reason,
  cast(c.token as signed) as token,
  cast(c.token + greatest(coalesce(c.n, 1), 1) - 1 as signed) as last_token,
  from_unixtime(c.since * 0.000001) as requested,
  from_unixtime(coalesce(c.granted, c.token) * 0.000001) as granted,
  greatest(coalesce(coalesce(c.granted, c.token) * 0.000001, unix_timestamp(now(6))) - c.since * 0.000001, 0) as waited,
  coalesce(c.retries, 0) as retries,
  coalesce(nullif(cast(json_value(s.value, '$.ttl') as signed), 0), c.ttl) * 0.001 as ttl,
  from_unixtime((s.version - coalesce(cast(json_value(s.value, '$.suspected.age') as signed), 0)) * 0.000001) as last_beat,
  {shown json_value(s.value, '$.suspected.by')} as suspected_by,
  if(json_value(s.value, '$.suspected.by') is null, null, from_unixtime(s.version * 0.000001)) as suspected_since,
  coalesce(cast(json_value(s.value, '$.dead') as signed), 0) <> 0 as dead,
  {shown s.owner} as owner,
  {shown json_value(s.value, '$.owner.address')} as address,
  {shown json_value(s.value, '$.owner.device')} as device,
  {shown coalesce(json_extract(s.value, concat('$.labels."', c.nr, '"')), c.labels)} as labels
from claims c
left join sessions s on s.id = concat(x'01', c.session)
where c.session is not null;

-- One row for each of the last holds of a name.
create or replace view {history} as
with holds as (
  select substr(r.id, 2) as name, h.token, h.owner, h.host, h.pid, h.`user`, h.program, h.granted, h.ended, h.waited, h.reason, h.how, h.why,
         h.by_name, h.by_host, h.by_user, -- h.* would need rights of whoever makes the view
         coalesce(concat(coalesce(concat(h.`user`, '@'), ''), h.host), h.`user`) as at
  from (
    select id, if(json_valid(convert(value using utf8mb4)), convert(value using utf8mb4), '[]') as value
    from {records}
    where id > x'04' and id < x'05' and value <> ''
  ) r join json_table(r.value, '$.holds[*]' columns (
    token decimal(20) path '$.token', owner text character set utf8mb4 path '$.owner.name', host text character set utf8mb4 path '$.owner.host',
    pid bigint path '$.owner.pid', `user` text character set utf8mb4 path '$.owner.user', program text character set utf8mb4 path '$.owner.program',
    granted decimal(20) path '$.from', ended decimal(20) path '$.to', waited decimal(20) path '$.waited',
    reason text character set utf8mb4 path '$.reason', how text character set utf8mb4 path '$.end', why text character set utf8mb4 path '$.why',
    by_name text character set utf8mb4 path '$.by.name', by_host text character set utf8mb4 path '$.by.host',
    by_user text character set utf8mb4 path '$.by.user')) h
)
select
  {shown h.name} as name,
  cast(h.token as signed) as token,
  {shown concat(coalesce(h.owner, h.at),
    coalesce(concat(' (', nullif(concat_ws(', ', if(h.owner is null, null, h.at), concat('pid ', h.pid)), ''), ')'), ''))} as holder,
  {shown h.host} as host,
  h.pid as pid,
  {shown h.`user`} as `user`,
  {shown h.program} as program,
  {shown h.owner} as owner,
  {shown h.reason} as reason,
  from_unixtime(h.granted * 0.000001) as granted,
  from_unixtime(h.ended * 0.000001) as ended,
  greatest(h.ended - h.granted, 0) * 0.000001 as held,
  coalesce(h.waited, 0) * 0.000001 as waited,
  {shown h.how} as how,
  {shown coalesce(h.by_name, concat(coalesce(concat(h.by_user, '@'), ''), h.by_host))} as ended_by,
  {shown h.why} as why
from holds h
where h.token is not null;

-- The fence for all who speak SQL, as the last statement before COMMIT:
--   call holdfast_fence('orders/42', 1795226403001234);
-- fails unless the token still holds the lock, and keeps the lock from being
-- taken over until the transaction has ended. After an error roll back.
--   HF002 the token does not hold it   HF003 there is no such lock
--   HF004 there is no transaction (MySQL cannot tell)
drop procedure if exists {fence};

delimiter //
create procedure {fence}(in lock_name varchar(1024) character set utf8mb4, in lock_token bigint)
  modifies sql data
begin
  declare its_id varbinary(4100) default concat(x'00', cast(lock_name as binary));
  declare raw longblob;
  declare doc longtext character set utf8mb4;
  declare its_version, seen, claim_slots, claim_ttl, its_limit bigint;
  declare claim_token, claim_n decimal(30);
  declare alone boolean;
  declare problem varchar(128) character set utf8mb4;
  declare began datetime(6) default now(6);

  -- A guess, by what this transaction may have seen long ago: holders that share
  -- a lock do not wait for each other here. (SET with a subquery would lock the row,
  -- and two that fence the same lock would deadlock.)
  select max(r.value) into raw from {records} r where r.id = its_id;
  set doc = convert(raw using utf8mb4);
  set alone = coalesce(if(json_valid(doc), json_value(doc, '$.holders[0].slots'), null) = 1, true);

  look: loop
    if alone then
      select max(r.version), max(r.fence), max(r.value) into its_version, seen, raw
      from {records} r where r.id = its_id for update;
    else
      select max(r.version), max(r.fence), max(r.value) into its_version, seen, raw
      from {records} r where r.id = its_id lock in share mode;
    end if;
    if coalesce(its_version, 0) = 0 then
      set problem = concat('no such lock in this database: "', coalesce(left(lock_name, 40), 'null'), '"; was it taken through another store?');
      signal sqlstate 'HF003' set message_text = problem;
    end if;
    set doc = convert(raw using utf8mb4);
    if not coalesce(json_valid(doc), false) then
      set doc = '[]';
    end if;
    select max(h.slots), max(h.token), max(h.n), max(h.ttl) into claim_slots, claim_token, claim_n, claim_ttl
    from (
      select coalesce(c.slots, 0) as slots, greatest(coalesce(c.n, 1), 1) as n, c.ttl,
             coalesce(nullif(c.token, 0),
                      greatest(its_version, coalesce(cast(json_value(doc, '$.next') as decimal(20)), 0)) + coalesce(c.off, 0)) as token
      from json_table(doc, '$.holders[*]' columns (
        session varchar(64) character set utf8mb4 path '$.session', slots bigint path '$.slots', token decimal(20) path '$.token',
        off decimal(20) path '$.off', n decimal(20) path '$.n', ttl bigint path '$.ttl')) c
      where c.session is not null
    ) h
    where lock_token >= h.token and lock_token < h.token + h.n;
    if alone or coalesce(claim_slots, 0) <> 1 then
      leave look;
    end if;
    set alone = true; -- it has changed hands between the two looks
  end loop;

  -- Of an exclusive claim with many tokens only one may write at a time, and
  -- none behind a newer one.
  if claim_token is null or lock_token is null or (claim_slots = 1 and claim_n > 1 and lock_token < seen) then
    set problem = concat('token ', coalesce(lock_token, 'null'), ' no longer holds "', left(lock_name, 60), '"; roll back');
    signal sqlstate 'HF002' set message_text = problem;
  end if;
  if claim_slots = 1 and claim_n > 1 and lock_token > seen then
    update {records} r set r.fence = lock_token where r.id = its_id;
  end if;

  -- Where each statement commits by itself nothing stays locked. Within a trigger or
  -- a function, which are part of a statement, time stands still.
  /*M!100300
  if @@in_transaction = 0 and now(6) <> began then
    signal sqlstate 'HF004' set message_text = 'there is no transaction that could be fenced: begin one, and mind what commits it by itself, as statements that change tables do';
  end if;
  */

  -- A process that freezes must not keep the lock from others for ever. What
  -- follows is a comment to MySQL, which has no such setting.
  /*M!100300
  set its_limit = greatest(1, ceiling(least(coalesce(nullif(claim_ttl, 0), 15000), 86400000) / 1000));
  if @@session.idle_transaction_timeout = 0
      or @@session.idle_transaction_timeout = @holdfast_limit and @holdfast_limit > its_limit then -- set by an earlier fence
    set session idle_transaction_timeout = its_limit;
    set @holdfast_limit = its_limit;
  end if;
  */
end//
delimiter ;

set session sql_mode = @holdfast_sql_mode;

insert ignore into {meta} (`key`, value) values ('version', 1), ('floor', 0);
