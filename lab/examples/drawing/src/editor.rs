//! A process that draws. It reports which strokes are safe; whatever kills the process, they are in the
//! drawing exactly once.

use std::io::Write;
use std::time::Duration;

use netram_shared::Node;
use netram_shared::node::AcquireError;

use crate::demo_directory::{DemoDirectory, wait_for_end_of_input};
use crate::drawing::{DrawingPoint, LAYERS, SIZE, count, current, draw, redraw, shift};

/// Prefix of the line with the number of a safe stroke.
pub(crate) const DRAWN_PREFIX: &str = "drawn ";

/// Draws until the input ends.
pub(crate) fn run(place: &DemoDirectory, author: u32, pause: u64) -> anyhow::Result<()> {
    let told = std::thread::spawn(wait_for_end_of_input);
    let mut hand = RandomHand(u64::from(author) | 1);
    while !told.is_finished() {
        let node = place.join(&format!("editor-{author}"))?;
        // By now each stroke of this editor's earlier process is in the drawing, acknowledged or not, or
        // never will be: its journal was read to the end before any node got its locks.
        let mut number = count(&current(&node)?).get(&author).copied().unwrap_or(0);
        while !told.is_finished() && node.gone().is_none() {
            let layer = hand.below(LAYERS.into()) as u32;
            match draw(&node, layer, (author, number + 1), &hand.flower()) {
                Ok(()) => {
                    number += 1;
                    writeln!(std::io::stdout(), "{DRAWN_PREFIX}{number}")?;
                    edit_at_random(&node, layer, author, &mut hand)?;
                }
                // The node has ended, for example because this process slept too long. It joins again and
                // counts its strokes.
                Err(_) if node.gone().is_some() => {}
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
            std::thread::sleep(Duration::from_millis(pause));
        }
        if node.gone().is_none() {
            node.leave()?;
        }
    }
    Ok(())
}

/// Now and then moves all strokes, or redraws one.
fn edit_at_random(node: &Node, layer: u32, author: u32, hand: &mut RandomHand) -> anyhow::Result<()> {
    let done = match hand.below(20) {
        0 => shift(
            node,
            layer,
            author,
            DrawingPoint {
                x: hand.near(0, 40),
                y: hand.near(0, 40),
            },
        ),
        1..4 => redraw(node, layer, author, &hand.flower()),
        _ => Ok(()),
    };
    match done {
        Err(error) if node.gone().is_none() && !is_timeout(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether a lock did not come in time. Nothing was drawn, and the server may be back soon.
fn is_timeout(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(AcquireError::TimedOut(_)))
}

/// A random generator of strokes, the same for the same seed.
struct RandomHand(u64);

impl RandomHand {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }

    fn near(&mut self, place: i16, reach: u64) -> i16 {
        place + self.below(2 * reach) as i16 - reach as i16
    }

    /// A flower: a closed line with petals.
    fn flower(&mut self) -> Vec<DrawingPoint> {
        let (x, y) = (self.below(SIZE as u64) as f64, self.below(SIZE as u64) as f64);
        let (petals, radius) = (3 + self.below(5), 6.0 + self.below(14) as f64);
        let corners = petals * 8;
        let corner = |corner: u64| {
            let turn = corner as f64 / corners as f64 * std::f64::consts::TAU;
            let reach = radius * (1.0 + 0.5 * (turn * petals as f64).cos());
            DrawingPoint {
                x: (x + reach * turn.cos()) as i16,
                y: (y + reach * turn.sin()) as i16,
            }
        };
        (0..=corners).map(corner).collect()
    }
}
