# Targets that are commands of kveval now. For one release each names its command and ends with 2.
CALL = INVOCATION.call

for target in FORMER_TARGETS:

    rule:
        name:
            target
        input:
            lambda wildcards, target=target: end_with_command(target, CALL),
        localrule: True
