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
            prices=json.dumps(SETTINGS["prices"]),
            stores=[name for name, arm in SETTINGS["scenarios"].items() if arm["store"]],
            library=code_behind("kveval/plugins/prices/costs"),
        message:
            "Pricing tokens and requests"
        shell:
            f"{MODULE} kveval.plugins.prices.costs --prices {{params.prices:q}}"
            " --stores {params.stores:q} --levels {input.levels:q} --peaks {input.peaks:q}"
            " --comparison {input.comparison:q} --runs {input.runs:q} --output {output:q}"

    BESIDE_REPORT.append(f"{ANALYSIS}/costs.csv")
