//! A client of the real `upsd`, with the driver `dummy-ups` behind it.

mod monitor;
mod nut;
