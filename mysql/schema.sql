-- Holdfast's tables, version 1. Every statement may be repeated.

create table if not exists {meta} (
  `key` varchar(20) not null primary key,
  value bigint      not null
) engine=InnoDB default charset=ascii;

-- A record that holds nothing keeps its row and its version.
create table if not exists {records} (
  id      varbinary(256) not null primary key,         -- \0 lock, \1 session, \2 setting, \3 audit; then the name
  version bigint         not null,                     -- microseconds since 1970, or one more than before; 0: never written
  value   mediumblob     not null,                     -- JSON, or empty
  fence   bigint         not null default 0,           -- highest token of a block seen by a fence
  attempt binary(16)     not null default ''           -- the batch that wrote it last, if one has
) engine=InnoDB;

insert ignore into {meta} (`key`, value) values ('version', 1), ('floor', 0);
