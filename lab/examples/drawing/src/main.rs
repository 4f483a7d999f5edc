//! An example: several processes edit one drawing, which is an object graph in shared memory. Killing any of
//! them loses nothing.
//!
//! ```text
//! cargo run --release -p netram-drawing -- demo
//! ```
//!
//! | file | does |
//! |---|---|
//! | `drawing.rs` | the drawing: layers, groups and strokes linked by pointers; all access to shared memory.
//! Read this first |
//! | `editor.rs` | a process that draws until it is told to stop |
//! | `viewer.rs` | a process that shows the drawing: a page in the browser, or the terminal |
//! | `demo_directory.rs` | the directory, the lenders and the server |
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
    /// Starts everything, kills one process after the other, and checks that every acknowledged stroke is
    /// there.
    Demo {
        /// Show the drawing as a page at this address of this machine; port 0 chooses one.
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: String,
        /// Show it in this terminal, too.
        #[arg(long)]
        terminal: bool,
        /// Strokes that each editor draws between two kills.
        #[arg(long, default_value_t = 30)]
        strokes: u64,
        /// Keep showing the drawing at the end, until the input ends.
        #[arg(long)]
        stay: bool,
        /// Milliseconds between two strokes of an editor.
        #[arg(long, default_value_t = 25)]
        pause: u64,
    },
    /// Draws until its input ends, and reports which of its strokes are safe.
    Edit {
        /// Directory of lenders, server and nodes.
        directory: PathBuf,
        /// The editor's number, from 1 on.
        author: u32,
        /// Milliseconds between two strokes.
        #[arg(long, default_value_t = 25)]
        pause: u64,
    },
    /// Shows the drawing until its input ends.
    View {
        /// Directory of lenders, server and nodes.
        directory: PathBuf,
        /// Show it as a page at this address.
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: String,
        /// Show it in this terminal, too.
        #[arg(long)]
        terminal: bool,
    },
    /// Lends memory until its input ends.
    Lend {
        /// Directory of lenders, server and nodes.
        directory: PathBuf,
        /// Name of the lender.
        name: String,
    },
    /// Serves the region that has the drawing, until its input ends.
    Serve {
        /// Directory of lenders, server and nodes.
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
