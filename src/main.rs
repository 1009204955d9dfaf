//! The `shufflefs` binary: everything is in the library, see [`shufflefs::cli`].

fn main() -> std::process::ExitCode {
    shufflefs::cli::main()
}
