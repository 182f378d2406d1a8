// Package postgres keeps locks in a PostgreSQL database, version 12 or newer, which may
// be the application's own: then a transaction can be fenced (see Fence).
// docs/stores/postgres.md says how to prepare the database and what is refused.
//
// # Notifications
//
// Every NOTIFY wakes every backend that listens in the database, whatever it listens to.
// So a client listens only while it waits. Each session has a channel of its own, so that
// a notification wakes only the program that it is meant for. Behind a pooler that shares
// connections no notification arrives. The store notices, because a notification to itself
// does not come, and waiters poll. What a notification says is never believed.
//
// # Connections
//
// Heartbeats have a connection of their own, which does not wait for a pool. A program that
// takes one lock and ends uses one connection for both.
//
// # The fence
//
// The fence locks the record's row (shared for shared holders) and checks the token
// against the record. A takeover waits for the end of the transaction. A process that
// freezes in it would keep the lock from others for ever, so the fence lets its transaction
// be idle for a TTL at most. A prepared transaction may be idle for ever.
// Rejected: to make PREPARE fail by a notification in the fence, which cost three commits
// of four with 16 clients.
//
// # Names in SQL
//
// Names are looked up in the caller's search_path, and overloads by how well they fit, in
// any of its schemas. Functions and operators of a role that may create there would be
// called with the rights of the caller, and by the fence with those of the owner. So
// Holdfast's functions have search_path = pg_catalog, pg_temp and name tables with their
// schema. What the view calls for each row, and statements on the caller's connections,
// use operator(pg_catalog.=). Rejected: a search_path of our own on those connections,
// which a pooler would hand on to others.
package postgres
