//! From the form that an answer must have, or the tools that it must call, to a grammar.

use forerun_decode::{Grammar, GrammarBegin, GrammarSpec, ToolCallSpec};

use super::{Conversation, Form, ToolChoice, tool_name};
use crate::desk::Facts;
use crate::refusal::Refusal;

/// The grammar of answers to a conversation, beginning where `begin` says.
///
/// # Errors
/// A refusal that names the field: a form that isn't enforced, tools that aren't there or that the template can't call.
pub(super) fn of_chat(
    conversation: &Conversation,
    form: Option<&Form>,
    begin: GrammarBegin,
    facts: &Facts,
) -> Result<Option<Grammar>, Refusal> {
    let tools = match &conversation.choice {
        ToolChoice::Auto => None,
        ToolChoice::Required => Some(conversation.tools.clone()),
        ToolChoice::Named(name) => {
            let named: Vec<_> =
                conversation.tools.iter().filter(|tool| tool_name(tool) == name).cloned().collect();
            if named.is_empty() {
                let words = format!("`tool_choice` names `{name}`, which isn't one of the tools");
                return Err(Refusal::invalid("tool_choice", words));
            }
            Some(named)
        }
    };
    let grammar = match (tools, form) {
        (Some(tools), _) => {
            let several = conversation.choice == ToolChoice::Required && !conversation.is_single_call;
            compile(&forced(tools, several, facts)?, facts)
        }
        (None, None) => return Ok(None),
        (None, Some(form)) if !conversation.tools.is_empty() => {
            let words = format!(
                "`{}` with tools that the model may call or not isn't possible: write a `tool_choice` that forbids or \
                 forces calls",
                form.param
            );
            Err(Refusal::unsupported(form.param.clone(), words))
        }
        (None, Some(form)) => compile(form, facts),
    };
    Ok(Some(grammar?.beginning(begin)))
}

/// The grammar of answers to a prompt without a template.
///
/// # Errors
/// A refusal that names the field.
pub(super) fn of_raw(form: Option<&Form>, facts: &Facts) -> Result<Option<Grammar>, Refusal> {
    form.map(|form| compile(form, facts)).transpose()
}

/// The form of an answer that calls.
fn forced(tools: Vec<serde_json::Value>, several: bool, facts: &Facts) -> Result<Form, Refusal> {
    if tools.is_empty() {
        let words = "`tool_choice` asks for a call, but there are no tools";
        return Err(Refusal::invalid("tool_choice", words));
    }
    let format = facts.template.as_ref().and_then(|template| template.call_format());
    let format = format.ok_or_else(|| {
        let words = "`tool_choice` asks for a call, but this model's template shows no way to write one";
        Refusal::unsupported("tool_choice", words)
    })?;
    let spec = GrammarSpec::ToolCalls(ToolCallSpec { tools, format, several });
    Ok(Form { spec, param: "tools".into() })
}

fn compile(form: &Form, facts: &Facts) -> Result<Grammar, Refusal> {
    let grammar = facts.grammars().and_then(|grammars| grammars.compile(&form.spec));
    grammar.map_err(|error| Refusal::from(error).at(form.param.clone()))
}
