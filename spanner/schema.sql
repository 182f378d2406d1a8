-- Holdfast, version 1.

create table if not exists {records} (
  shard   int64 not null,           -- of space and name: 32-bit FNV-1a of the byte space and the name, modulo 16
  space   int64 not null,           -- 0 names, 1 sessions, 2 settings, 3 forced releases, 4 histories
  name    bytes(1024) not null,
  value   bytes(1048576) not null,  -- JSON; empty: nothing
  written timestamp not null options (allow_commit_timestamp = true), -- the version, in microseconds since 1970
  fenced  int64,                    -- the highest token that a fence let pass, where tokens are handed on in memory
) primary key (shard, space, name);
