-- The statements of a store. {records} is the table of that name, and {{clock}} is the
-- text named so, above. Lists go to the server as one JSON argument, so that one prepared
-- statement serves every length: the server has room for few prepared statements.

-- When the statement began. So no record looks younger than the call that wrote it, however
-- long it waited for the row.
--- clock
cast(unix_timestamp(now(6)) * 1000000 as signed)

-- What is read differently by MariaDB and MySQL is in comments to one of them. It is what
-- changes the meaning of our statements, or may stop them, of all that the caller, the
-- server or its init_connect may have set: time zones have hours that come twice, for
-- example. A default is what the server's variables say, so none is asked for. autocommit
-- goes off and on again to end a transaction that has begun already.
--- set up
set session autocommit = 0, autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1,
	time_zone = _ascii'+00:00', timestamp = default, sql_mode = _ascii'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION',
	character_set_client = utf8mb4, character_set_connection = utf8mb4, character_set_results = utf8mb4,
	sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_safe_updates = 0, unique_checks = 1, foreign_key_checks = 1
	/*M!100600 , tx_isolation = 'READ-COMMITTED', tx_read_only = 0, max_statement_time = 0 */
	/*!80000 , transaction_isolation = 'READ-COMMITTED', transaction_read_only = 0, max_execution_time = 0 */

-- What a read-only server shows may be old. The variable is a number or a word.
--- follows
concat(@@global.read_only) not in ('0', 'OFF')

--- load
select r.id, r.version, r.value, {{clock}}, {{follows}}
from (select 1) one left join {records} r on r.id = ?

-- It looks every few milliseconds until the version is another, or for so many times. Only a
-- select of its own locks nothing: one in a condition would wait for whoever writes the row.
--- await
begin not atomic
	declare looks int default ?;
	declare seen bigint;
	look: loop
		select (select r.version from {records} r where r.id = ?) into seen;
		if looks <= 0 or not seen <=> ? then
			leave look;
		end if;
		do sleep(?);
		set looks = looks - 1;
	end loop;
	{{load}};
end

--- load all
select r.id, r.version, r.value, {{clock}}, {{follows}}
from json_table(?, '$[*]' columns (id varchar(1400) character set ascii path '$')) w
	left join {records} r on r.id = from_base64(w.id)

-- Both ends are in one space.
--- load range
select null, null, null, {{clock}}, {{follows}}
union all
(select r.id, r.version, r.value, 0, 0 from {records} r where r.id >= ? and r.id <= ? limit ?)

-- A new row starts above the floor. The shared lock on that makes a sweep wait until the
-- row is there to be seen.
--- insert
insert into {records} (id, version, value)
values (?, last_insert_id((select greatest(m.value + 1, {{clock}}) from {meta} m where m.`key` = 'floor' lock in share mode)), ?)
on duplicate key update
	version = if(value = '', last_insert_id(greatest(version + 1, values(version))), version + last_insert_id(0)),
	value = if(value = '', values(value), value)

--- update
update {records} set version = last_insert_id(greatest(version + 1, {{clock}})), value = ?
where id = ? and version = ?

-- It fails at once if somebody keeps the row locked.
--- locked
select version from {records} where id = ? for update nowait

-- What update is to a row that holds nothing.
--- take
update {records} set version = last_insert_id(greatest(version + 1, {{clock}})), value = ?
where id = ? and value = '' and version > 0

-- In a row that is not there a write that follows a version leaves nothing but an empty row
-- without a version, which is as good as none.
--- swaps
insert into {records} (id, version, value, attempt)
select from_base64(w.id), if(w.old = -1, greatest(m.value + 1, {{clock}}), 0), if(w.old = -1, from_base64(w.value), ''), if(w.old = -1, ?, '')
from {meta} m join json_table(?, '$[*]' columns (
	id varchar(1400) character set ascii path '$[0]', old bigint path '$[1]', value {{type}} character set ascii path '$[2]')) w
where m.`key` = 'floor' lock in share mode
on duplicate key update
	attempt = if({records}.version = w.old or (w.old = -1 and {records}.value = ''), ?, {records}.attempt),
	value = if({records}.attempt = ?, from_base64(w.value), {records}.value),
	version = if({records}.attempt = ?, greatest({records}.version + 1, m.value + 1, {{clock}}), {records}.version)

--- returning
returning id, if(attempt = ?, version, 0)

-- What a batch has won, where the server has no INSERT … RETURNING.
--- won
select r.id, r.version
from json_table(?, '$[*]' columns (id varchar(1400) character set ascii path '$[0]')) w
	straight_join {records} r on r.id = from_base64(w.id)
where r.attempt = ?

--- keys
select id from {records} where id > ? and id < ? and value <> '' order by id limit ?

--- idle
select id, version from {records} where id > ? and value = '' and version <= {{clock}} - ? order by id limit ?

--- raise
update {meta} set value = greatest(value, ?) where `key` = 'floor'

--- remove
delete from {records} where id in ({{ids}}) and value = '' and version <= ?

--- settings
show global variables where variable_name in ('version', 'read_only', 'super_read_only', 'innodb_read_only', 'innodb_flush_log_at_trx_commit',
	'log_bin', 'sync_binlog', 'binlog_format', 'wsrep_on', 'wsrep_forced_binlog_format', 'max_allowed_packet', 'rpl_semi_sync_master_enabled',
	'rpl_semi_sync_source_enabled', 'group_replication_group_name', 'group_replication_single_primary_mode')

-- Only MariaDB counts them where all may see it.
--- replicas
show global status like 'Slaves_connected'

--- version
select value, @@session.sql_log_bin = 0 from {meta} where `key` = 'version'

-- What a user needs who takes locks, fences and sweeps.
--- grants
grant select, insert, update, delete on {records} to $role;
grant select, update on {meta} to $role;
grant execute on procedure {fence} to $role;

-- What a user needs who looks.
--- grants to look
grant select on {records} to $role;
grant select on {meta} to $role;
grant select on {locks} to $role;
grant select on {history} to $role;

--- columns
select c.table_name, c.column_name, c.ordinal_position,
	concat(c.data_type, if(c.character_octet_length is null or t.table_type = 'VIEW', '', concat('(', c.character_octet_length, ')')),
		if(c.is_nullable = 'YES', '', ' not null'), if(c.column_key = 'PRI', ' primary key', '')),
	coalesce(t.engine, t.table_type)
from information_schema.columns c
join information_schema.tables t on t.table_schema = c.table_schema and t.table_name = c.table_name
where c.table_schema = database() and c.table_name in (?, ?, ?, ?)

--- trigger
select trigger_name from information_schema.triggers
where event_object_schema = database() and event_object_table = ? limit 1

--- procedure
select security_type, sql_mode, routine_definition from information_schema.routines
where routine_schema = database() and routine_name = ?

--- view
select security_type, view_definition from information_schema.views
where table_schema = database() and table_name = ?

-- The columns of tables and view as "columns" returns them.
--- published
meta = InnoDB
meta key = varchar(20) not null primary key
meta value = bigint not null
records = InnoDB
records id = varbinary(1025) not null primary key
records value = mediumblob(16777215) not null
records version fence = bigint not null
records attempt = binary(16) not null
locks name mode state position holder host pid user program session nr reason token last_token = column
locks requested granted waited retries ttl last_beat suspected_by suspected_since dead owner address device labels = column
history name token holder host pid user program owner reason granted ended held waited how ended_by why = column

-- A text of the schema with what a terminal would obey or hide written out: control characters,
-- those that turn the direction of text, and those that have no width. It looks at the text in
-- hexadecimal, where each character has eight digits, puts a dot before each, and an x before each
-- digit of those to be written out. What a group is called in a replacement MariaDB and MySQL do
-- not agree upon.
--- shown
convert(unhex(replace(replace(replace(replace(replace(replace(replace(replace(
      regexp_replace(regexp_replace(
        regexp_replace(convert(hex(convert(convert({{text}} using utf8mb4) using utf32)) using utf8mb4), '(.{8})', if(version() like '%MariaDB%', '.\\1', '.$1')),
        '[.]0000(?=00[01].|007F|00[89].|00AD|061C|180E|200[B-F]|202[89A-E]|206.|FEFF|FFF[9AB])(.)(.)(.)(.)',
        concat('0000005C00000075', if(version() like '%MariaDB%', '000000x\\1000000x\\2000000x\\3000000x\\4', '000000x$1000000x$2000000x$3000000x$4'))),
        '[.]000E(?=00[0-7].)(.)(.)(.)(.)',
        concat('0000005C00000055000000x0000000x0000000x0000000xE', if(version() like '%MariaDB%', '000000x\\1000000x\\2000000x\\3000000x\\4', '000000x$1000000x$2000000x$3000000x$4'))),
      '.', ''), 'xA', '61'), 'xB', '62'), 'xC', '63'), 'xD', '64'), 'xE', '65'), 'xF', '66'), 'x', '3')) using utf32)
