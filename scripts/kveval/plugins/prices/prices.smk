# What tokens and requests cost at the campaign's prices.
if CAMPAIGN.prices:

    rule price_tokens:
        input:
            **JUDGED,
            runs=ALL_RUNS,
        output:
            f"{ANALYSIS}/costs.csv",
        log:
            f"{LOGS}/{{so_far}}price_tokens.log",
        conda:
            "../../../../envs/workflow.yaml"
        resources:
            mem_mb=MB_FOR_ALL,
            runtime=MINUTES_FOR_ALL,
        params:
            settings=json.dumps(
                {
                    "prices": SETTINGS["prices"],
                    "stores": [
                        name
                        for name, arm in SETTINGS["scenarios"].items()
                        if arm["store"]
                    ],
                }
            ),
            library=code_behind("kveval/plugins/prices/costs"),
        message:
            "Pricing tokens and requests"
        shell:
            f"{MODULE} kveval.plugins.prices.costs {{params.settings:q}} {{input:q}} {{output:q}}"

    BESIDE_REPORT.append(f"{ANALYSIS}/costs.csv")
