fn main() -> std::process::ExitCode {
    tg::cli::main()
}
