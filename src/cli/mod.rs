//! What was typed, made into a validated configuration, and run.
//!
//! [`args`] is what can be typed; [`options`] what is meant; [`sources`] which files; [`dataset`] opens everything and refuses what can be refused; [`commands`]
//! has one function per subcommand. Errors end here: one line on stderr that names the file, the element, the reason
//! and the way out, and an exit code.

pub mod args;
mod commands;
pub mod dataset;
mod describe;
mod memory;
pub mod options;
mod progress;
mod readme;
pub mod sources;
pub mod text;

use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use args::{Cli, Command, DatasetArgs};
use options::UsageError;

/// Parses the command line, runs the command, and returns its exit code: 0 done, 1 run-time failure, 2 usage.
#[must_use]
pub fn main() -> ExitCode {
    let words = match args::expand_fstab(std::env::args_os()) {
        Ok(words) => words,
        Err(reason) => return fail(2, &reason),
    };
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return not_parsed(&error),
    };
    let result = match cli.command {
        Command::Mount(args) => commands::mount::run(args),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Cat(args) => commands::cat::run(args),
        Command::Export(args) => commands::export::run(args),
        Command::Status(args) => commands::status::run(&args),
        Command::Bench(args) => commands::bench::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => fail(if error.downcast_ref::<UsageError>().is_some() { 2 } else { 1 }, &text::chain(&error)),
    }
}

/// Help and version are printed as they are, errors as one line.
fn not_parsed(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
    }
    // Paragraphs: what is wrong, tips, the usage, where help is. The last two say no more than `--help`.
    let text = error.render().to_string();
    let paragraphs = text.split("\n\n").take_while(|p| !p.starts_with("Usage:") && !p.starts_with("For more"));
    let words: Vec<&str> = paragraphs.flat_map(str::split_whitespace).collect();
    let message = words.join(" ");
    fail(2, &format!("{}; see --help", message.strip_prefix("error: ").unwrap_or(&message)))
}

fn fail(code: u8, message: &str) -> ExitCode {
    // One line, whatever a file put into the message.
    eprintln!("shufflefs: {}", message.replace(['\n', '\r'], " "));
    ExitCode::from(code)
}

/// Whoever read our output has seen enough: not a failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The options, completed from the `--config` file if there is one.
fn with_config(args: DatasetArgs) -> anyhow::Result<DatasetArgs> {
    let Some(path) = &args.config else { return Ok(args) };
    let text = std::fs::read_to_string(path).map_err(|e| anyhow::anyhow!("--config {}: {e}", path.display()))?;
    let mut file: DatasetArgs = toml::from_str(&text).map_err(|e| UsageError {
        option: format!("--config {}: line {}", path.display(), line_of(&text, e.span())),
        reason: e.message().lines().next().unwrap_or("not TOML").to_owned(),
    })?;
    // A file may be read from anywhere: its sources lie where it says, seen from its own folder.
    let folder = std::path::absolute(path)?;
    let folder = folder.parent().unwrap_or(&folder);
    file.sources.iter_mut().for_each(|source| *source = folder.join(&*source));
    Ok(args.or(file))
}

/// Number of the line, from 1, in which a span of `text` begins.
fn line_of(text: &str, span: Option<std::ops::Range<usize>>) -> usize {
    let before = text.as_bytes().get(..span.map_or(0, |span| span.start)).unwrap_or_default();
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}
