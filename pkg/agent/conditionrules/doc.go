// Package conditionrules derives conditions of a manifest from its object. The condition rules of a
// ManifestWork are CEL expressions, or well-known rules of some kinds.
//
// Authors of works write the rules, and an expression can be made to run for hours or to fill the memory.
// Therefore everything is paid before it is done, in units of reading one value. The budget is per expression
// and per manifest. Each function that rules may use has a price, which depends on the actual arguments; a
// function without a price is rejected. Costs outside of functions are paid at each iteration of a loop. An
// exceeded limit ends the evaluation. It is an error in the condition, like any other error of an expression.
//
// [Evaluator] is pure except for its cache of compiled expressions. It creates its CEL environment when the
// first rule needs one.
package conditionrules
