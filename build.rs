fn main() {
    lalrpop::Configuration::new()
        .emit_rerun_directives(true)
        .process_dir("grammar")
        .expect("the grammar in grammar/ compiles");
}
