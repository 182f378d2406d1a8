-- The statements of a store. Where others have one argument or column for an id, these have
-- two: the space, then the name. The time is an argument, see the package comment.

--- load
select space, name, version, value, 0, 0 from holdfast_records where space = ?1 and name = ?2

-- ?1 is an array of texts, each the digit of a space before a name in hexadecimal digits.
--- load all
select r.space, r.name, r.version, r.value, 0, 0
from json_each(?1) id cross join holdfast_records r
on r.space = cast(substr(id.value, 1, 1) as integer) and r.name = unhex(substr(id.value, 2))

-- Both ends are in one space.
--- load range
select space, name, version, value, 0, 0 from holdfast_records
where space = ?1 and name between ?2 and ?4 order by name limit ?5

-- ?3 is the space behind.
--- keys
select space, name from holdfast_records
where space = ?1 and space < ?3 and name > ?2 and length(value) > 0
order by name limit ?5

--- idle
select space, name, version from holdfast_records
where (space, name) > (?1, ?2) and length(value) = 0 and version <= ?3
order by space, name limit ?4

-- A new row starts above the floor, which lies below no version that was ever swept.
--- insert
insert into holdfast_records (space, name, version, value)
values (?1, ?2, max(?3, (select value + 1 from holdfast_meta where key = 'floor')), ?4)
on conflict (space, name) do update
set version = max(version + 1, ?3), value = excluded.value
where length(value) = 0
returning version

--- update
update holdfast_records set version = ?1, value = ?2 where space = ?3 and name = ?4 and version = ?5

--- remove
delete from holdfast_records where space = ?1 and name = ?2 and version = ?3 and length(value) = 0

--- raise
update holdfast_meta set value = max(value, ?1) where key = 'floor'
