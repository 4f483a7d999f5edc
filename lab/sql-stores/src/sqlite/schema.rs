//! The tables, one for each class of objects, and the indexes that the benchmark needs.
//!
//! Objects refer to each other by id. An assembly's key is twice its id, plus one for a base assembly,
//! because the two kinds are numbered separately. Rows that belong to a part or an assembly are stored
//! together: such tables have no row ids.

/// Statements that create an empty database.
pub(super) const CREATE: &str = "
    create table state (name text primary key, value integer not null) without rowid;
    create table module (
        id integer primary key, kind integer not null, date integer not null, top integer,
        manual blob not null);
    create table assembly (
        key integer primary key, kind integer not null, date integer not null,
        module integer not null, parent integer);
    create index assembly_parent on assembly (parent);
    create table composite (
        id integer primary key, kind integer not null, date integer not null, root integer);
    create table document (
        id integer primary key, composite integer not null, title blob not null, text blob not null);
    create unique index document_title on document (title);
    create table part (
        id integer primary key, kind integer not null, date integer not null,
        x integer not null, y integer not null, document integer not null, composite integer not null);
    create index part_date on part (date);
    create index part_composite on part (composite);
    create table connection (
        source integer not null, place integer not null, target integer not null,
        kind integer not null, length integer not null,
        primary key (source, place)) without rowid;
    create index connection_target on connection (target);
    create table component (
        assembly integer not null, how integer not null, place integer not null, composite integer not null,
        primary key (assembly, how, place)) without rowid;
    create index component_composite on component (composite, how);
    insert into state values ('complete', 0), ('noted', 0);
";

/// Adds a connection at the next free position of a part.
pub(super) const CONNECT: &str = "
    insert into connection select ?1, coalesce(max(place) + 1, 0), ?2, ?3, ?4 from connection where source = ?1";

/// Adds a use at the next free position of an assembly.
pub(super) const ADD_USE: &str = "
    insert into component select ?1, ?2, coalesce(max(place) + 1, 0), ?3
        from component where assembly = ?1 and how = ?2";

/// Statements that remove a composite and everything that belongs to it, in this order.
pub(super) const REMOVE: [&str; 5] = [
    "delete from component where composite = ?1",
    "delete from connection where source in (select id from part where composite = ?1)",
    "delete from part where composite = ?1",
    "delete from document where id = ?1",
    "delete from composite where id = ?1",
];
