//! The animated picture of a terminal in the README: commands that are run for it, at the pace at which they ran.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use crate::error::ChoreError;
use crate::process::{cargo, output, root, run as run_command, target_dir};

/// What is run, as it would be typed in the checkout.
const COMMANDS: &[&[&str]] = &[
    &["run", "--quiet", "What does \"river\" mean?"],
    &["run", "-m", "fixtures/pico-q4_k_m.gguf", "--memory", "24MiB", "Tell me a short story about a fox."],
];
const COLUMNS: usize = 110;
/// Sizes in pixels.
const CHAR_WIDTH: f64 = 7.25;
const LINE_HEIGHT: usize = 17;
const MARGIN: usize = 14;
/// Seconds that a typed word and a look at an answer take.
const TYPED: f64 = 0.12;
const LOOKED_AT: f64 = 1.5;
/// What is said within so many seconds appears together.
const AT_ONCE: f64 = 0.03;

/// The chore: writes `docs/terminal.svg`.
///
/// # Errors
/// [`ChoreError`] when the program fails or the picture can't be written.
pub(crate) fn run() -> Result<(), ChoreError> {
    run_command(&mut cargo(&["build", "--release", "--package", "forerun"]))?;
    let program = target_dir().join("release/forerun");
    let mut screen = Screen::default();
    let mut now = 0.5;
    for args in COMMANDS {
        screen.put("$ ", "p", now);
        for word in typed(args).split_inclusive(' ') {
            now += TYPED;
            screen.put(word, "c", now);
        }
        screen.put("\n", "c", now);
        // The first run of a program reads it from the disk, which isn't what is shown.
        let _ = output(Command::new(&program).args(*args).current_dir(root()))?;
        let begin = now + 0.3;
        for (seconds, class, text) in shown(Command::new(&program).args(*args))? {
            now = begin + seconds;
            screen.put(&text, class, now);
        }
        now += LOOKED_AT;
    }
    let path = root().join("docs/terminal.svg");
    std::fs::write(&path, screen.svg()).map_err(|source| ChoreError::Io { doing: "write", path, source })
}

/// As one types it in a shell.
fn typed(args: &[&str]) -> String {
    let quoted = args.iter().map(|arg| match arg.contains([' ', '"']) {
        true => format!("'{arg}'"),
        false => (*arg).to_owned(),
    });
    std::iter::once("forerun".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ")
}

/// What a program says: seconds since its start, class of the stream, text.
fn shown(command: &mut Command) -> Result<Vec<(f64, &'static str, String)>, ChoreError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let begin = Instant::now();
    let piped =
        command.current_dir(root()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        piped.spawn().map_err(|source| ChoreError::NotStarted { command: name.clone(), source })?;
    let (sender, receiver) = mpsc::channel();
    let streams: [(&str, Option<Box<dyn Read + Send>>); 2] = [
        ("o", child.stdout.take().map(|stream| Box::new(stream) as _)),
        ("e", child.stderr.take().map(|stream| Box::new(stream) as _)),
    ];
    for (class, stream) in streams {
        let sender = sender.clone();
        thread::spawn(move || {
            let (mut stream, mut bytes) = (stream?, [0; 4096]);
            while let Ok(n @ 1..) = stream.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
                sender.send((begin.elapsed().as_secs_f64(), class, text)).ok()?;
            }
            Some(())
        });
    }
    drop(sender);
    let mut said: Vec<(f64, &str, String)> = Vec::new();
    for (seconds, class, text) in receiver {
        match said.last_mut() {
            // Nobody sees the difference, and a picture has fewer pieces.
            Some((before, of, line)) if *of == class && seconds - *before < AT_ONCE => line.push_str(&text),
            _ => said.push((seconds, class, text)),
        }
    }
    let status = child.wait().map_err(|source| ChoreError::NotStarted { command: name.clone(), source })?;
    if status.success() { Ok(said) } else { Err(ChoreError::Failed { command: name, status }) }
}

/// Characters that appear, one piece after the other.
#[derive(Default)]
struct Screen {
    row: usize,
    column: usize,
    pieces: String,
}

impl Screen {
    /// `text` where the last one ended, from `seconds` on.
    fn put(&mut self, text: &str, class: &str, seconds: f64) {
        for (i, line) in text.split('\n').enumerate() {
            if i > 0 {
                (self.row, self.column) = (self.row + 1, 0);
            }
            let mut rest: Vec<char> = line.chars().collect();
            while !rest.is_empty() {
                if self.column == COLUMNS {
                    (self.row, self.column) = (self.row + 1, 0);
                }
                let n = rest.len().min(COLUMNS - self.column);
                let piece: String = rest.drain(..n).collect();
                self.piece(&piece, class, seconds);
                self.column += n;
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "columns of a screen")]
    fn piece(&mut self, text: &str, class: &str, seconds: f64) {
        if text.trim().is_empty() {
            return;
        }
        // Whatever the font.
        let width = text.chars().count() as f64 * CHAR_WIDTH;
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let x = MARGIN as f64 + self.column as f64 * CHAR_WIDTH;
        let y = MARGIN + (self.row + 1) * LINE_HEIGHT;
        self.pieces += &format!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" textLength=\"{width:.1}\" style=\"animation-delay:{seconds:.2}s\">{text}</text>\n"
        );
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "pixels of a picture"
    )]
    fn svg(&self) -> String {
        let width = (COLUMNS as f64 * CHAR_WIDTH).ceil() as usize + 2 * MARGIN;
        let height = (self.row + 1) * LINE_HEIGHT + 2 * MARGIN;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" xml:space=\"preserve\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
             <style>text{{font:12px ui-monospace,Menlo,Consolas,monospace;white-space:pre;opacity:0;\
             animation:a 1ms forwards}}@keyframes a{{to{{opacity:1}}}}\
             .p{{fill:#7ee787}}.c{{fill:#f0f6fc}}.o{{fill:#ffd580}}.e{{fill:#8b949e}}</style>\n\
             <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n{}</svg>\n",
            self.pieces
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_are_quoted() {
        assert_eq!(typed(&["run", "-n", "3", "a \"b\""]), "forerun run -n 3 'a \"b\"'");
    }

    #[test]
    fn long_lines_are_broken_and_signs_escaped() {
        let mut screen = Screen::default();
        screen.put(&"x".repeat(COLUMNS + 3), "o", 1.0);
        screen.put("<&>\nend", "e", 2.0);
        assert_eq!((screen.row, screen.column), (2, 3));
        let svg = screen.svg();
        assert!(svg.contains("&lt;&amp;&gt;") && svg.contains("animation-delay:2.00s"), "{svg}");
        assert_eq!(svg.matches("<text ").count(), 4);
    }
}
