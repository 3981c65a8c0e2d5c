rule toy:
    input:
        JUDGED["levels"],
    output:
        f"{ANALYSIS}/toy.csv",
        f"{FIGURES}/toy/levels.png",
    shell:
        f"{MODULE} toy_plugin {{input}} {{output}}"


BESIDE_REPORT.extend([f"{ANALYSIS}/toy.csv", f"{FIGURES}/toy/levels.png"])
