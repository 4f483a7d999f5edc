//! An example: several processes edit one drawing, which is an object graph in shared memory. Killing any of
//! them loses nothing.
//!
//! ```text
//! cargo run --release -p netram-drawing -- demo
//! ```
//!
//! | file | does |
//! |---|---|
//! | `drawing.rs` | the drawing: layers, groups and strokes, linked by pointers; all that touches shared memory. Read this first |
//! | `editor.rs` | a process that draws until it is told to stop |
//! | `viewer.rs` | a process that shows the drawing: a page in the browser, or the terminal |
//! | `place.rs` | the directory, the lenders and the server |
//! | `demo.rs` | starts all of them, kills one after the other, and counts |
//!
//! Every process is this program, started with one of the commands below.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it is a program that talks to people")]

mod demo;
mod demo_directory;
mod drawing;
mod editor;
mod viewer;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use demo_directory::DemoDirectory;

#[derive(Parser)]
#[command(about = "Several processes edit one drawing in shared memory")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts everything, kills one process after the other, and proves that every acknowledged stroke is
    /// there.
    Demo {
        /// Show the drawing as a page at this address of this machine; port 0: any.
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: String,
        /// Show it in this terminal, too.
        #[arg(long)]
        terminal: bool,
        /// Strokes of each editor between two killings.
        #[arg(long, default_value_t = 30)]
        strokes: u64,
        /// In the end go on showing the drawing, until the input ends.
        #[arg(long)]
        stay: bool,
        /// Milliseconds between two strokes of an editor.
        #[arg(long, default_value_t = 25)]
        pause: u64,
    },
    /// Draws until its input ends, and says which of its strokes are safe.
    Edit {
        /// Where lenders, server and nodes are.
        directory: PathBuf,
        /// The editor's number, from 1 on.
        author: u32,
        /// Milliseconds between two strokes.
        #[arg(long, default_value_t = 25)]
        pause: u64,
    },
    /// Shows the drawing until its input ends.
    View {
        /// Where lenders, server and nodes are.
        directory: PathBuf,
        /// As a page at this address.
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: String,
        /// In this terminal, too.
        #[arg(long)]
        terminal: bool,
    },
    /// Lends memory until its input ends.
    Lend {
        /// Where lenders, server and nodes are.
        directory: PathBuf,
        /// Its name.
        name: String,
    },
    /// Serves the region that has the drawing, until its input ends.
    Serve {
        /// Where lenders, server and nodes are.
        directory: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Demo {
            listen,
            terminal,
            strokes,
            stay,
            pause,
        } => demo::run(&demo::DemoOptions {
            listen,
            terminal,
            strokes,
            stay,
            pause,
        }),
        Command::Edit {
            directory,
            author,
            pause,
        } => editor::run(&DemoDirectory::at(directory), author, pause),
        Command::View {
            directory,
            listen,
            terminal,
        } => viewer::run(&DemoDirectory::at(directory), &listen, terminal),
        Command::Lend { directory, name } => DemoDirectory::at(directory).lend(&name),
        Command::Serve { directory } => DemoDirectory::at(directory).serve(),
    }
}
