//! Discovery with real sockets: name servers of the tests' own, and a network that has nobody in it.

mod browsing;
mod name_servers;
