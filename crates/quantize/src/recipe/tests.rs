//! Recipes as files.

use super::*;

#[track_caller]
fn check(text: &str, expect: &str) {
    let error = Recipe::parse("test", text).unwrap_err().to_string();
    assert!(error.contains(expect), "{error}");
}

#[test]
fn what_a_file_may_not_say_is_named() {
    check("", "either `base`");
    check("base = \"q4_k_m\"\ndefault = \"Q4_K\"", "either `base`");
    check("base = \"q5_x\"", "there are q4_k_m, les, q3_k_m, q8_0");
    check("bass = \"q4_k_m\"", "unknown field `bass`");
    check("default = \"Q4_K_M\"", "`default` is \"Q4_K_M\", which can't be written; there are F32 ");
    check("default = \"IQ1_S\"", "can't be written");
    let rule = |rule: &str| format!("base = \"les\"\n[[rule]]\n{rule}");
    check(&rule("tensors = \"x\"\ntype = \"Q9_K\""), "`type` of rule 1 is \"Q9_K\"");
    check(&rule("tensors = \"x\"\ntype = \"i32\""), "is \"I32\", which can't be written");
    check(&rule("tensors = \"x[\"\ntype = \"Q6_K\""), "the pattern of rule 1");
    check(&rule("tensors = \"x\"\ntype = \"Q6_K\"\nlayers = \"3-1\""), "`layers` of rule 1 is \"3-1\"");
    check(&rule("tensors = \"x\"\ntype = \"Q6_K\"\nlayer = 3"), "unknown field `layer`");
    check(&rule("type = \"Q6_K\""), "missing field `tensors`");
}

#[test]
fn layers_are_numbers_and_ranges() {
    let layers = Layers::parse("0-3, 36-39,7").unwrap();
    assert_eq!(layers.to_string(), "0-3,36-39,7");
    let found: Vec<_> = (0..50).filter(|layer| layers.contains(*layer)).collect();
    assert_eq!(found, [0, 1, 2, 3, 7, 36, 37, 38, 39]);
    for wrong in ["", "a", "1-", "-1", "1,,2", "2-1", "1-2-3"] {
        assert_eq!(Layers::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn a_recipe_reads_back_as_it_was_written() {
    for name in Recipe::NAMES {
        let recipe = Recipe::named(name).unwrap();
        let again = Recipe::parse(name, &recipe.to_toml()).unwrap();
        assert_eq!((again.base(), again.rules()), (recipe.base(), recipe.rules()), "{}", recipe.to_toml());
    }
    let text = "default = \"iq4_xs\"\n[[rule]]\ntensors = 'a\"b\\\\'\nlayers = \"1\"\ntype = \"Q6_K\"";
    let recipe = Recipe::parse("test", text).unwrap();
    let again = Recipe::parse("test", &recipe.to_toml()).unwrap();
    assert_eq!((again.base(), again.rules()), (recipe.base(), recipe.rules()));
}

#[test]
fn a_name_that_is_no_file_is_answered_with_what_there_is() {
    let error = Recipe::open(Path::new("q4_k_x")).unwrap_err().to_string();
    assert!(error.contains("q4_k_m, les, q3_k_m, q8_0"), "{error}");
    assert_eq!(Recipe::open(Path::new("Q4_K_M")).unwrap().base(), Mixture::Q4KM);
}
