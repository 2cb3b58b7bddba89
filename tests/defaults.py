"""What a module takes where nothing is given."""

import inspect


def numbers_by_default(module):
    """Functions, classes and methods of the module, each with the arguments that are numbers unless
    they are given: "name argument=number", in the order of the source."""
    found = []
    for name, made in vars(module).items():
        if getattr(made, "__module__", None) != module.__name__ or not callable(made):
            continue
        inside = vars(made).items() if inspect.isclass(made) else ()
        methods = [(f"{name}.{part}", x) for part, x in inside if inspect.isfunction(x)]
        for called, function in [(name, made), *methods]:
            numbers = [
                f"{argument.name}={argument.default:g}"
                for argument in inspect.signature(function).parameters.values()
                if isinstance(argument.default, int | float)
                and not isinstance(argument.default, bool)
            ]
            if numbers and "_" not in {called[0], *called.partition(".")[2][:1]}:
                found.append(" ".join([called, *numbers]))
    return found
